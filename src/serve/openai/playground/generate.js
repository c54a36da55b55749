async function generate(signal) {
  if (!at("model-a").value) await models();
  const names = [at("model-a").value, at("model-b").value].filter(Boolean);
  const panels = names.map((name) => new Panel(name));
  at("panels").replaceChildren(...panels.map((panel) => panel.root));
  // The server chooses a default for an empty field.
  const number = (id) => (at(id).value === "" ? null : Number(at(id).value));
  const body = {
    prompt: at("prompt").value, max_tokens: number("max"), temperature: number("temperature"), seed: number("seed"),
    echo: true, boundaries: true, logprobs: 3, stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  // The models run in turn, so that neither slows the other down.
  for (const panel of panels) {
    generation.showStatus(`${panel.model} is generating …`);
    await panel.run(body, signal);
  }
  generation.showStatus("Done.");
}

const generation = new Task("form", "go", "stop", "status", generate);

