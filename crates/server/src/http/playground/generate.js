const GENERATION_FIELDS = {
  prompt: { id: "prompt", name: "Prompt", needed: "a text that the model continues" },
  model: { id: "model-a", name: "Model" },
  max_tokens: { id: "max", name: () => at("unit").textContent },
  temperature: { id: "temperature", name: "Temperature", empty: "the model's default" },
  top_p: { id: "top-p", name: "Top-p", empty: "the model's default" },
  seed: { id: "seed", name: "Seed", empty: "a random one" },
  stop: { id: "stop-strings", name: "Stop strings", check: stopProblem },
};

/** Returns the stop strings: one a line, in which \n is a line break and \\ a backslash. */
const stopStrings = () =>
  at("stop-strings").value.split("\n").filter(Boolean).map((line) => line.replace(/\\([n\\])/g, (_, code) => (code === "n" ? "\n" : code)));

/** Describes the speeds of two completions in words, and draws them on one scale from 0. */
function compareSpeeds(panels) {
  const root = at("verdict");
  root.hidden = panels.length < 2;
  if (root.hidden) return;
  const [fast, slow] = [...panels].sort((a, b) => b.speed() - a.speed());
  const few = panels.find((panel) => !(panel.speed() > 0) || panel.textCharacters < 20);
  if (few) {
    const why = few.textCharacters < 20
      ? `${few.model} generated too few characters to measure a speed.`
      : `the characters of ${few.model} came in one message, so their speed is unknown.`;
    root.replaceChildren(make("p", "", `No comparison: ${why}`));
    return;
  }
  const ratio = fast.speed() / slow.speed();
  const words = ratio < 1.05
    ? `${fast.model} and ${slow.model} generated about as many characters a second.`
    : `${fast.model} generated ${shown(ratio)} times as many characters a second as ${slow.model}.`;
  const bars = make("dl", "bars");
  for (const panel of panels) {
    const bar = make("i");
    bar.style.width = `${(60 * panel.speed()) / fast.speed()}%`;
    const value = make("dd");
    value.append(bar, `${shown(panel.speed(), 0)} characters/s`);
    bars.append(make("dt", "", panel.model), value);
  }
  const [first, second] = panels.map((panel) => `${shown(panel.gaps.first, 1)} ms`);
  const note = `First character after ${first} and ${second}. One run each, one after the other: run again to see how much it varies.`;
  root.replaceChildren(make("p", "words", words), bars, make("p", "about", note));
}

async function generate(signal) {
  if (!at("model-a").value) await models();
  const names = [at("model-a").value, at("model-b").value].filter(Boolean);
  if (!names.length) throw new RequestError("This server has no model that generates text.");
  generation.check();
  const settings = readSettings("tab-generate");
  const body = {
    prompt: at("prompt").value, max_tokens: generation.numberOf("max_tokens"), temperature: generation.numberOf("temperature"),
    // As text: a number of JavaScript is exact up to 2^53 only.
    top_p: generation.numberOf("top_p"), seed: at("seed").value || null, stop: stopStrings(), echo: true,
    boundaries: true, logprobs: 3, stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  const panels = names.map((name) => new Panel(name, unitOf(name), (served.get(name) || {}).pooled));
  at("panels").replaceChildren(...panels.map((panel) => panel.root));
  at("verdict").hidden = true;
  at("hint").hidden = false;
  try {
    // The models run in turn, so that neither slows the other down.
    for (const panel of panels) {
      generation.showStatus(`${panel.model} is generating …`);
      await panel.run(body, signal, () => drawTogether(panels));
    }
  } finally {
    const empty = panels.filter((panel) => !panel.characters.length);
    for (const panel of empty) panel.root.remove();
    at("hint").hidden = empty.length === panels.length;
  }
  compareSpeeds(panels);
  generation.showStatus(`Done.${remember(settings, panels)}`);
}

const generation = new Task({ form: "form", go: "go", halt: "stop", status: "status" }, GENERATION_FIELDS, generate);

