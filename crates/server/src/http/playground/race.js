const GENERATION_FIELDS = {
  prompt: { id: "prompt", name: "Prompt", needed: "a text that the model continues" },
  model: { id: "model-a", name: "Model" },
  max_tokens: { id: "max", name: () => at("unit").textContent },
  temperature: { id: "temperature", name: "Temperature", empty: "the model's default" },
  top_p: { id: "top-p", name: "Top-p", empty: "the model's default" },
  seed: { id: "seed", name: "Seed", empty: "a random one" },
  stop: { id: "stop-strings", name: "Stop strings", check: stopProblem },
  structured_outputs: { id: "text-form", name: "Only text of this form" },
};

/** Returns the form of the text: a JSON schema if the input begins with a brace that no digit follows, otherwise a regular expression,
    whose spaces count; null for any text. */
function textForm() {
  const form = at("text-form").value;
  if (!form.trim()) return null;
  return /^\s*\{(?!\d)/.test(form) ? { json: form } : { regex: form };
}

/** Returns the stop strings: one a line, in which \n is a line break and \\ a backslash. */
const stopStrings = () =>
  at("stop-strings").value.split("\n").filter(Boolean).map((line) => line.replace(/\\([n\\])/g, (_, code) => (code === "n" ? "\n" : code)));

/** Describes the speeds of the completions in words, and draws them on one scale from 0. */
function compareSpeeds(views, isDone) {
  const root = at("verdict");
  root.hidden = false;
  const bars = make("dl", "bars");
  const most = Math.max(...views.map((view) => view.speed() || 0));
  for (const view of views) {
    const bar = make("i", view.pools ? "ours" : "");
    bar.style.width = `${most ? (55 * (view.speed() || 0)) / most : 0}%`;
    const value = make("dd");
    value.append(bar, view.speed() > 0 ? `${shown(view.speed(), 0)} characters/s` : "–");
    bars.append(make("dt", "", view.model), value);
  }
  root.replaceChildren(make("p", "words", isDone ? verdictOf(views) : "Characters a second"), bars);
  if (!isDone) return;
  const firsts = views.map((view) => `${shown(view.gaps.first, 1)} ms`).join(" and ");
  const note = views.length > 1 ? " One run each, one after the other: run again to see how much it varies." : "";
  root.append(make("p", "about", `First character after ${firsts}.${note}`));
}

function verdictOf(views) {
  const few = views.find((view) => !(view.speed() > 0) || view.textCharacters < 20);
  if (few) {
    const why = few.textCharacters < 20
      ? `${few.model} generated too few characters to measure a speed.`
      : `the characters of ${few.model} came in one message, so their speed is unknown.`;
    return `No comparison: ${why}`;
  }
  const [fast, slow] = [...views].sort((a, b) => b.speed() - a.speed());
  if (!slow) return `${fast.model} generated ${shown(fast.speed(), 0)} characters a second.`;
  const ratio = fast.speed() / slow.speed();
  return ratio < 1.05
    ? `${fast.model} and ${slow.model} generated about as many characters a second.`
    : `${fast.model} generated ${shown(ratio)} times as many characters a second as ${slow.model}.`;
}

async function generate(signal) {
  if (!at("model-a").value) await models();
  const names = [at("model-a").value, at("model-b").value].filter(Boolean);
  if (!names.length) throw new RequestError("This server has no model that generates text.");
  generation.check();
  const settings = readSettings("tab-race");
  const body = {
    prompt: at("prompt").value, max_tokens: generation.numberOf("max_tokens"), temperature: generation.numberOf("temperature"),
    // As text: a number of JavaScript is exact up to 2^53 only.
    top_p: generation.numberOf("top_p"), seed: at("seed").value || null, stop: stopStrings(), structured_outputs: textForm(), echo: true,
    boundaries: true, logprobs: 3, stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  performance.clearMeasures("frame");
  const views = names.map((name) => new CompletionView(name, unitOf(name), (served.get(name) || {}).pooled));
  for (const view of views) view.details.addEventListener("toggle", () => drawTogether(views));
  at("panels").replaceChildren(...views.map((view) => view.root));
  at("verdict").hidden = true;
  at("hint").hidden = false;
  try {
    // The models run in turn, so that neither slows the other down.
    for (const view of views) {
      generation.showStatus(`${view.model} is generating …`);
      await view.run(body, signal, () => compareSpeeds(views, false));
    }
  } finally {
    const empty = views.filter((view) => !view.characters.length);
    for (const view of empty) view.root.remove();
    at("hint").hidden = empty.length === views.length;
    if (empty.length) at("verdict").hidden = true;
  }
  drawTogether(views);
  compareSpeeds(views, true);
  generation.showStatus(`Done.${remember(settings, views)}`);
}

const generation = new Task({ form: "form", go: "go", halt: "stop", status: "status" }, GENERATION_FIELDS, generate);
