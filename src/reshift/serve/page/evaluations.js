// Evaluations: a labelled test split through a model, with metrics and a report.

import { API, json, session } from "./api.js";
import { backTo, badge, el, facts, field, icon, notice, number, table, when } from "./dom.js";

const EVERY = 2000;

export async function show(place, [id]) {
  const page = new Page(place, id);
  await page.load();
  return page;
}

class Page {
  constructor(place, id) {
    Object.assign(this, { place, id });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  async load() {
    const found = this.id
      ? [await json(`${API}/evaluations/${this.id}`)]
      : (await json(`${API}/jobs?kind=evaluate&limit=200`)).items;
    const models = this.id ? [] : (await json(`${API}/models`)).items.filter((model) => !model.error);
    if (this.closed) return;
    if (this.id) this.place.replaceChildren(one(found[0]));
    else if (this.rows) this.rows.replaceWith((this.rows = list(found)));
    else
      this.place.replaceChildren(
        el("div", { class: "page" }, el("h1", { text: "Evaluations" }), (this.rows = list(found)), starter(models)),
      );
    if (found.some(({ state }) => state === "queued" || state === "running")) this.timer = setTimeout(() => this.load(), EVERY);
  }
}

function list(jobs) {
  if (!jobs.length) return el("p", { class: "empty", text: "No evaluations yet." });
  const heads = ["Test split", "Model", "State", "Images", "When", "Report"];
  const row = (job) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: `#/evaluations/${job.id}`, text: job.path })),
      el("td", { text: job.model }),
      el("td", {}, badge(job.state, "", job.state), job.error && el("span", { class: "hint error", text: job.error })),
      el("td", { class: "num", text: job.cases }),
      el("td", { text: when(job.created) }),
      el("td", {}, job.state === "done" ? report(job) : "–"),
    );
  return table("evaluations", heads, jobs.map(row));
}

const report = (job) =>
  el(
    "a",
    {
      href: `${API}/evaluations/${job.id}/report.html`,
      target: "_blank",
      rel: "noopener",
      "aria-label": `Report of ${job.path}`,
    },
    "Report",
    icon("external"),
  );

function one(job) {
  const groups = Object.entries(job.metrics ?? {}).filter(
    ([name, value]) => ["image", "pixel", "n"].includes(name) && value && typeof value === "object",
  );
  const names = { image: "Images", pixel: "Pixels", n: "Counts" };
  const value = (found) => (typeof found === "number" ? number(found, 4) : String(found ?? "–"));
  const panel = ([name, values]) =>
    el(
      "section",
      { class: "panel" },
      el("h2", { text: names[name] }),
      facts(
        Object.entries(values)
          .filter(([, found]) => found === null || typeof found !== "object")
          .map(([key, found]) => [key.replaceAll("_", " "), value(found)]),
      ),
    );
  return el(
    "div",
    { class: "page" },
    backTo("#/evaluations", "All evaluations"),
    el("h1", { text: job.path }),
    el(
      "div",
      { class: "line" },
      badge(job.state, "", job.state),
      el("span", { class: "hint", text: `${job.model} · ${when(job.created)}` }),
      job.state === "done" ? report(job) : "",
    ),
    job.error && el("p", { class: "notice error", text: job.error }),
    job.notes.map((text) => notice("warn", text)),
    el("div", { class: "columns" }, groups.map(panel)),
  );
}

function starter(models) {
  if (!session.paths)
    return el("p", {
      class: "notice",
      text: "To evaluate from here, start the server with --data DIR, which holds labelled test images.",
    });
  const path = el("input", { required: true, placeholder: "labelled/manifest.csv", autocomplete: "off", spellcheck: "false" });
  const model = el(
    "select",
    {},
    models.map(({ name }) => el("option", { value: name, text: name })),
  );
  const error = el("p", { class: "notice error", role: "alert", hidden: true });
  const start = async (event) => {
    event.preventDefault();
    error.hidden = true;
    try {
      const job = await json(`${API}/evaluations`, { method: "POST", body: { path: path.value, model: model.value } });
      location.hash = `#/evaluations/${job.id}`;
    } catch (err) {
      error.textContent = err.message;
      error.hidden = false;
    }
  };
  return el(
    "section",
    { class: "panel", "aria-labelledby": "new-title" },
    el("h2", { id: "new-title", text: "New evaluation" }),
    el(
      "form",
      { class: "grid-form", onsubmit: start },
      field("Labelled test images", path, "A manifest or data set below --data, with rows in split test"),
      field("Model", model),
      error,
      el("div", { class: "line" }, el("button", { class: "primary", text: "Evaluate" })),
    ),
  );
}
