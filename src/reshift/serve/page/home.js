// The first page: drop images, choose a model, see all jobs.

import { API, json, session, upload } from "./api.js";
import { announce, badge, button, bytes, el, field, icon, many, remember, remembered, table, when } from "./dom.js";
import { fromDrop, fromInput } from "./dropped.js";

const EVERY = 2000; // milliseconds between looks at jobs that run

export async function show(place) {
  const home = new Home((await json(`${API}/models`)).items);
  place.replaceChildren(home.element);
  await home.load();
  return home;
}

class Home {
  constructor(models) {
    this.models = models.filter((model) => !model.error);
    this.more = null;
    const usual = remembered("model");
    this.model = el(
      "select",
      { id: "model", onchange: () => this._model() },
      this.models.map(({ name }) => el("option", { value: name, text: name, selected: name === usual })),
    );
    this.about = el("p", { class: "hint" });
    this.dicom = el("input", { type: "checkbox" });
    this.drop = this._dropZone();
    this.uploads = el("div", { class: "uploads" });
    this.rows = el("tbody");
    this.older = button("", "Older jobs", () => this.load(true), { hidden: true });
    this.table = table("jobs", ["Job", "Model", "State", "Cases", "By", "When", ""], this.rows, { class: "jobs" });
    this.none = el("p", { class: "empty", text: "No jobs yet. Drop an image to begin.", hidden: true });
    this.element = el(
      "div",
      { class: "page home" },
      el("h1", { text: "Score images" }),
      el("div", { class: "start" }, this.drop, this._options()),
      this.uploads,
      el("h2", { text: "Jobs" }),
      this.table,
      this.none,
      this.older,
    );
    this._model();
  }

  close() {
    clearTimeout(this.timer);
    this.closed = true;
  }

  _dropZone() {
    const file = el("input", {
      type: "file",
      multiple: true,
      id: "files",
      class: "visually-hidden",
      tabindex: "-1",
      "aria-hidden": "true",
      onchange: () => this._picked(file),
    });
    const folder = el("input", {
      type: "file",
      webkitdirectory: true,
      class: "visually-hidden",
      tabindex: "-1",
      "aria-hidden": "true",
      onchange: () => this._picked(folder),
    });
    const zone = el(
      "div",
      { class: "drop" },
      icon("upload"),
      el("p", { class: "drop-title", text: "Drop images, volumes, folders or zips here" }),
      el("p", {
        class: "hint",
        text: `PNG, JPEG, TIFF, NIfTI, DICOM · up to ${many(session.max_files, "file")} and ${bytes(session.max_upload_bytes)}`,
      }),
      el(
        "div",
        { class: "line" },
        button("", "Choose files", () => file.click(), { class: "primary", disabled: !this.models.length }),
        button("", "Choose a folder", () => folder.click(), { disabled: !this.models.length }),
      ),
      file,
      folder,
    );
    for (const name of ["dragover", "dragenter"]) {
      zone.addEventListener(name, (event) => {
        event.preventDefault();
        zone.classList.add("over");
      });
    }
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", async (event) => {
      event.preventDefault();
      zone.classList.remove("over");
      this._send(await fromDrop(event.dataTransfer));
    });
    return zone;
  }

  _options() {
    const path = el("input", { placeholder: "scans/2026", autocomplete: "off", spellcheck: "false", required: true });
    const named = el(
      "form",
      { class: "path", onsubmit: (event) => this._named(event, path) },
      field("Or a path on the server", path, "A file or folder below --data"),
      el("button", { text: "Score" }),
    );
    return el(
      "div",
      { class: "options" },
      this.models.length
        ? field("Model", this.model)
        : el(
            "p",
            { class: "notice warn" },
            el(
              "span",
              {},
              "There is no model yet. ",
              el("a", { href: "#/trainings", text: "Train one" }),
              " on healthy images first.",
            ),
          ),
      this.about,
      el("label", { class: "check" }, this.dicom, el("span", { text: "Also make DICOM results" })),
      session.paths && named,
    );
  }

  _model() {
    const chosen = this.models.find(({ name }) => name === this.model.value);
    if (!chosen) return;
    remember("model", chosen.name);
    const learned = chosen.images ? `, learned from ${many(chosen.images, "healthy image")}` : "";
    this.about.replaceChildren(
      `Method ${chosen.method}${learned}. `,
      el("a", { href: `#/models/${encodeURIComponent(chosen.name)}`, text: "Model card" }),
    );
  }

  _picked(input) {
    this._send(fromInput(input.files));
    input.value = "";
  }

  async _send(files) {
    const size = files.reduce((sum, { file }) => sum + file.size, 0);
    const stop = new AbortController();
    const state = el("span", { class: "upload-state" });
    const bar = el("progress", { max: 1, value: 0, "aria-label": "Upload" });
    const end = button(
      "close",
      "",
      () => (stop.signal.aborted || row.dataset.ended ? row.remove() : stop.abort(new Error("cancelled"))),
      { class: "quiet", "aria-label": "Cancel or close" },
    );
    const row = el(
      "div",
      { class: "upload" },
      el("span", { class: "upload-name", text: files.length === 1 ? files[0].path : many(files.length, "file") }),
      bar,
      state,
      end,
    );
    this.uploads.prepend(row);
    const refuse = (text, lines = []) => {
      row.dataset.ended = "refused";
      row.classList.add("refused");
      bar.remove();
      state.replaceChildren(
        el("strong", { text: "Not accepted: " }),
        text,
        lines.length > 1
          ? el(
              "ul",
              {},
              lines.slice(0, 20).map((line) => el("li", { text: line })),
            )
          : "",
      );
      announce(`Not accepted: ${text}`);
    };
    if (!this.models.length) return refuse("there is no model to score with");
    if (!files.length) return refuse("there are no files in it");
    if (files.length > session.max_files)
      return refuse(`${many(files.length, "file")}; a job may have ${session.max_files.toLocaleString("en")}`);
    if (size > session.max_upload_bytes) return refuse(`${bytes(size)}; a job may have ${bytes(session.max_upload_bytes)}`);
    const fields = { model: this.model.value, ...(this.dicom.checked ? { dicom: "true" } : {}) };
    try {
      const job = await upload(files, fields, (now) => progress(now, bar, state, size), stop.signal);
      row.remove();
      announce(`Accepted: ${many(job.cases, "case")}`);
      if (!this.closed) location.hash = `#/jobs/${job.id}`;
    } catch (err) {
      refuse(err.message, err.lines);
    }
  }

  async _named(event, path) {
    event.preventDefault();
    const note = el(
      "div",
      { class: "upload" },
      el("span", { class: "upload-name", text: path.value }),
      el("span", { class: "upload-state", text: "Asking…" }),
    );
    this.uploads.prepend(note);
    try {
      const job = await json(`${API}/jobs/from-path`, {
        method: "POST",
        body: { path: path.value, model: this.model.value, dicom: this.dicom.checked },
      });
      location.hash = `#/jobs/${job.id}`;
    } catch (err) {
      note.classList.add("refused");
      note.lastChild.replaceChildren(el("strong", { text: "Not accepted: " }), err.message);
      announce(`Not accepted: ${err.message}`);
    }
  }

  async load(older = false) {
    clearTimeout(this.timer);
    const found = await json(`${API}/jobs?kind=score&limit=30${older && this.more ? `&before=${this.more}` : ""}`);
    if (this.closed) return;
    const rows = found.items.map((job) => this._job(job));
    if (older) this.rows.append(...rows);
    else this.rows.replaceChildren(...rows);
    this.more = found.next;
    this.grown = older; // then it is not fetched again by itself, or the older ones would vanish
    this.older.hidden = !this.more;
    this.table.hidden = this.rows.children.length === 0;
    this.none.hidden = this.rows.children.length > 0;
    const busy = found.items.some(({ state }) => state === "queued" || state === "running");
    if (busy && !this.grown) this.timer = setTimeout(() => this.load().catch(() => {}), EVERY);
  }

  _job(job) {
    const running = job.state === "running" || job.state === "queued";
    const progress_ = running ? el("progress", { max: job.cases || 1, value: job.done, "aria-label": "Cases scored" }) : null;
    const failed = job.failures ? `, ${many(job.failures, "error")}` : "";
    const remove = button("trash", "", () => this._remove(job), {
      class: "quiet",
      "aria-label": `Delete job ${job.id.slice(0, 6)}`,
      title: "Delete with uploads, results and reviews",
    });
    return el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("a", { href: `#/jobs/${job.id}`, text: job.path ?? job.id.slice(0, 6) }),
        el("span", { class: "hint narrow", text: job.model }),
      ),
      el("td", { text: job.model }),
      el("td", {}, badge(job.state, "", job.state), job.error && el("span", { class: "hint error", text: job.error })),
      el("td", { class: "num" }, `${running ? `${job.done} of ` : ""}${job.cases.toLocaleString("en")}${failed}`, progress_),
      el("td", { text: job.owner }),
      el("td", { text: when(job.created) }),
      el("td", {}, remove),
    );
  }

  async _remove(job) {
    if (!confirm(`Delete job ${job.id.slice(0, 6)} with its uploads, results and reviews? They cannot be brought back.`)) return;
    await json(`${API}/jobs/${job.id}`, { method: "DELETE" });
    clearTimeout(this.timer);
    await this.load();
  }
}

function progress(now, bar, state, size) {
  if (now.waiting) {
    state.textContent = `${now.why}; trying again in ${now.waiting} s`;
    return;
  }
  const quarter = Math.floor((4 * now.sent) / (now.total || 1));
  if (quarter !== Number(bar.dataset.quarter ?? 0)) announce(`Upload ${25 * quarter} %`);
  bar.dataset.quarter = quarter;
  bar.max = now.total || size || 1;
  bar.value = now.sent;
  state.textContent = now.sent < now.total ? `${bytes(now.sent)} of ${bytes(now.total)}` : "Checking the files…";
}
