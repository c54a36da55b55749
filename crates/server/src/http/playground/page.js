const TABS = ["tab-edit", "tab-compress", "tab-race", "tab-summarize"];

/** Shows one of the tabs. */
function openTab(chosen) {
  for (const id of TABS) {
    at(id).setAttribute("aria-selected", String(id === chosen));
    at(id).tabIndex = id === chosen ? 0 : -1;
    at(at(id).getAttribute("aria-controls")).hidden = id !== chosen;
  }
  at(at(chosen).getAttribute("aria-controls")).dispatchEvent(new Event("shown"));
}

for (const id of TABS) {
  at(id).addEventListener("click", () => openTab(id));
  at(id).addEventListener("keydown", (event) => {
    const step = { ArrowLeft: TABS.length - 1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const other = TABS[(TABS.indexOf(id) + step) % TABS.length];
    openTab(other);
    at(other).focus();
  });
}

/** The served models by name, as `/v1/models` describes them. */
const served = new Map();

const unitOf = (name) => (served.get(name) || {}).token || "character";

/** Describes a model: its shape, size, number format and limits. */
function factsOf(model) {
  const parameters = model.parameters < 1e6 ? shown(model.parameters, 0) : `${shown(model.parameters / 1e6, 1)} million`;
  const parts = [...(model.scope ? [`for ${model.scope}`] : []), `${model.shape || model.family}`, `${parameters} parameters`, model.dtype];
  const { documents } = model;
  if (documents) {
    const poolings = documents.poolings.length;
    parts.push(`documents of up to ${shown(documents.max_tokens, 0)} tokens, plus the end token`);
    parts.push(poolings ? `pools ${poolings === 1 ? "once" : `${poolings} times`}` : "does not pool");
  } else {
    parts.push(`up to ${shown(model.max_model_len, 0)} ${unitOf(model.id)}s`, model.pooled ? "pools" : "does not pool");
  }
  return parts.join(" · ");
}

/** Lists the served models in the menu. */
function showModels() {
  at("facts").replaceChildren(...[...served.values()].map((model) => {
    const item = make("li");
    item.append(make("strong", "", model.id), factsOf(model));
    return item;
  }));
}

/** Shows what depends on the chosen models and settings. */
function showFacts() {
  // Inputs whose bounds are a model's.
  const lengths = ["model-a", "model-b"].map((id) => served.get(at(id).value)).filter(Boolean).map((model) => model.max_model_len);
  at("max").max = lengths.length ? Math.min(...lengths) : "";
  const { documents } = served.get(at("summary-model").value) || {};
  for (const id of ["min-tokens", "max-tokens"]) at(id).max = documents ? documents.max_summary_tokens : "";
  const { scope } = served.get(at("summary-model").value) || {};
  at("scope").textContent = scope ? `This one has learnt to write ${scope}.` : "";
  const unit = unitOf(at("model-a").value);
  at("unit").textContent = `${unit[0].toUpperCase()}${unit.slice(1)}s`;
  const values = [["temperature", "temperature"], ["top-p", "top-p"], ["seed", "seed"]].filter(([id]) => at(id).value !== "");
  const stops = stopStrings().length;
  const all = [...values.map(([id, name]) => `${name} ${at(id).value}`), ...(stops ? [`${stops} stop ${stops === 1 ? "string" : "strings"}`] : [])];
  at("sampling-values").textContent = all.length ? `(${all.join(", ")})` : "(the model's defaults)";
}

async function models() {
  const list = await (await ask("/v1/models")).json();
  served.clear();
  for (const model of list.data) served.set(model.id, model);
  const option = (value, text) => Object.assign(make("option", "", text), { value });
  const fill = (id, options, fallback) => {
    const before = at(id).value;
    at(id).replaceChildren(...options);
    at(id).value = options.some((option) => before && option.value === before) ? before : fallback;
  };
  const generators = list.data.filter((model) => !model.documents);
  const summarizers = list.data.filter((model) => model.documents);
  const named = (models) => models.map((model) => option(model.id, model.id));
  const first = (models) => (models[0] || { id: "" }).id;
  fill("model-a", named(generators), first(generators.filter((model) => model.pooled)) || first(generators));
  const { token } = served.get(at("model-a").value) || {};
  const baseline = first(generators.filter((model) => !model.pooled && model.token === token && model.id !== at("model-a").value));
  fill("model-b", [option("", "no model"), ...named(generators)], baseline);
  const completers = generators.filter((model) => model.token !== "piece");
  const pooled = first(completers.filter((model) => model.pooled)) || first(completers);
  fill("compress-model", named(completers), pooled);
  fill("edit-model", named(completers), pooled);
  fill("summary-model", named(summarizers), first(summarizers.filter((model) => model.documents.poolings.length)) || first(summarizers));
  // A form without a model is hidden, and a line says how to serve one. One model generates, two race.
  const parts = [["edit-form", completers, 1], ["compress-form", completers, 1], ["form", generators, 2], ["summary-form", summarizers, 1]];
  for (const [id, fitting, wanted] of parts) {
    at(id).hidden = !fitting.length;
    at(id).parentElement.querySelector(".needs").hidden = fitting.length >= wanted;
  }
  at("model-b").parentElement.hidden = generators.length < 2;
  at("go").textContent = generators.length < 2 ? "Generate" : "Race";
  if (!generators.length && summarizers.length) openTab("tab-summarize");
  showModels();
  showFacts();
  if (link) applyLink();
}

const chosen = () => [editing, compressing, generation, summary].find((task) => !task.form.closest("[role=tabpanel]").hidden);
showExamples("prompts", "prompt", PROMPTS);
showExamples("sources", "source", TEXTS);
at("source").value = TEXTS[0][1];
at("document").value = DOCUMENTS[0][1];
showExamples("documents", "document", DOCUMENTS);
showExamples("beginnings", "editor", WRITINGS);
showHistory();
showFacts();
at("forget").addEventListener("click", () => writeHistory([]));
at("link").addEventListener("click", () => copyLink("tab-race"));
at("summary-link").addEventListener("click", () => copyLink("tab-summarize"));
at("edit-link").addEventListener("click", () => copyLink("tab-edit"));
for (const line of document.querySelectorAll(".needs")) {
  line.append(" ", copyButton("Copy", () => line.querySelector("code").textContent.replace(/\s+/g, " ")));
}
at("summary-copy").replaceWith(Object.assign(copyButton("Copy", () => at("summary").textContent), { id: "summary-copy" }));
at("key").addEventListener("change", () => (chosen() === editing ? editing.restart(edit) : chosen().run(models)));
document.addEventListener("click", (event) => {
  if (!at("menu").contains(event.target)) at("menu").open = false;
});
addEventListener("hashchange", () => {
  link = location.hash;
  // Otherwise `models` applies it.
  if (served.size) applyLink();
});
for (const event of ["input", "change"]) document.addEventListener(event, showFacts);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) chosen().form.requestSubmit();
  // The editor takes Escape to dismiss a completion.
  if (event.key === "Escape" && !event.defaultPrevented) [compressing, generation, summary].forEach((task) => task.stop());
});
if (stored(RAN)) foldSettings(document);
// The editor opens first, with a text that has typing errors.
at("editor").value = WRITINGS[0][1];
at("editor").setSelectionRange(at("editor").value.length, at("editor").value.length);
at("editor").focus({ preventScroll: true });
editing.run(edit);
