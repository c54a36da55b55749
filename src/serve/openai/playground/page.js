const TABS = ["tab-generate", "tab-summarize"];

/** Shows one of the two tabs. */
function open_tab(chosen) {
  for (const id of TABS) {
    at(id).setAttribute("aria-selected", String(id === chosen));
    at(id).tabIndex = id === chosen ? 0 : -1;
    at(at(id).getAttribute("aria-controls")).hidden = id !== chosen;
  }
}

for (const id of TABS) {
  at(id).addEventListener("click", () => open_tab(id));
  at(id).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = TABS.find((tab) => tab !== id);
    open_tab(other);
    at(other).focus();
  });
}

async function models() {
  const response = await fetch("/v1/models", { headers: headers() });
  const list = await response.json();
  if (!response.ok) throw new Error(list.error.message);
  const option = (value, text) => Object.assign(make("option", "", text), { value });
  const options = (models) => models.map((model) => Object.assign(option(model.id, model.id), { title: model.shape }));
  const generators = list.data.filter((model) => !model.documents);
  const summarizers = list.data.filter((model) => model.documents);
  at("model-a").replaceChildren(...options(generators));
  at("model-b").replaceChildren(option("", "no model"), ...options(generators));
  at("summary-model").replaceChildren(...options(summarizers));
  at("no-readers").hidden = summarizers.length > 0;
  if (!generators.length && summarizers.length) open_tab("tab-summarize");
}

const chosen = () => (at("generating").hidden ? summary : generation);
at("key").addEventListener("change", () => chosen().run(models));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) chosen().form.requestSubmit();
  if (event.key === "Escape") [generation, summary].forEach((task) => task.stop());
});
generation.run(models);
