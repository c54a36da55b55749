async function generate(signal) {
  if (!at("model-a").value) await models();
  const names = [at("model-a").value, at("model-b").value].filter(Boolean);
  const panels = names.map((name) => new Panel(name));
  at("panels").replaceChildren(...panels.map((panel) => panel.root));
  // what is left empty is the server's to choose
  const number = (id) => (at(id).value === "" ? null : Number(at(id).value));
  const body = {
    prompt: at("prompt").value, max_tokens: number("max"), temperature: number("temperature"), seed: number("seed"),
    echo: true, boundaries: true, logprobs: 3, stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  // one after the other: beside each other they would share the machine
  for (const panel of panels) {
    generation.say(`${panel.model} writes …`);
    await panel.run(body, signal);
  }
  generation.say("Done.");
}

const generation = new Task("form", "go", "stop", "status", generate);

