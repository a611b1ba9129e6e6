// A job: its cases, the viewer, and what is found and decided.

import { API, events, json } from "./api.js";
import { CaseList } from "./caselist.js";
import { announce, backTo, badge, button, el, icon, many, number, remember, remembered, toast } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Viewer } from "./viewer.js";

const ENDED = ["done", "failed", "cancelled"];

export async function show(place, [id, chosen]) {
  const work = new Work(await json(`${API}/jobs/${id}`));
  place.replaceChildren(work.element);
  await work.start(chosen);
  return work;
}

class Work {
  constructor(job) {
    this.job = job;
    this.viewer = new Viewer();
    this.inspector = new Inspector(
      (voxel) => this.viewer.goTo(voxel),
      (item) => this._reviewed(item),
    );
    this.list = new CaseList((item) => this._chosen(item));
    this.state = el("div", { class: "job-state" });
    this.notes = el("details", { class: "job-notes", hidden: true });
    this.onwards = el("input", {
      type: "checkbox",
      checked: remembered("onwards") === "on",
      onchange: () => remember("onwards", this.onwards.checked ? "on" : "off"),
    });
    const exports = el(
      "div",
      { class: "links exports" },
      el("label", { class: "check" }, this.onwards, el("span", { text: "Next case after a decision" })),
      el(
        "a",
        { class: "as-button", href: `${job.url}/reviews.csv`, download: `reviews-${job.id}.csv` },
        icon("download"),
        "Reviews as CSV",
      ),
      el("a", { href: `${job.url}/scores.jsonl`, download: `scores-${job.id}.jsonl`, text: "Scores" }),
      el("a", { href: `${job.url}/findings`, download: `findings-${job.id}.json`, text: "Findings" }),
    );
    const along = el(
      "div",
      { class: "along" },
      button("back", "Cases", () => this._pane("list"), { class: "quiet" }),
      button("", "Previous", () => this.list.step(-1)),
      button("", "Next", () => this.list.step(1)),
    );
    this.element = el(
      "div",
      { class: "work", "data-pane": "list" },
      el("div", { class: "work-head" }, backTo("#/", "All jobs"), this.state, exports),
      this.notes,
      this.list.element,
      el("div", { class: "stage" }, along, this.viewer.element),
      this.inspector.element,
    );
    this._state();
  }

  async start(chosen) {
    await this.list.open(this.job);
    if (chosen) await this.list.selectId(chosen);
    else if (this.list.total && innerWidth >= 800) await this.list.step(0);
    if (!ENDED.includes(this.job.state)) this._watch();
  }

  // The address changed, but not the job: back from a case to the list, or on to another.
  update([, chosen]) {
    if (!chosen) this._pane("list");
    else if (chosen !== this.list.chosen?.id) this.list.selectId(chosen);
  }

  close() {
    this.stop?.();
    clearTimeout(this.timer);
    this.list.close();
    this.viewer.close();
  }

  _watch() {
    this.stop = events(`${this.job.url}/events`, {
      job: (job) => {
        this.job = job;
        this._state();
        this._later();
        if (ENDED.includes(job.state)) announce(`${job.state}: ${many(job.cases, "case")}, ${many(job.failures, "error")}`);
        return ENDED.includes(job.state);
      },
      deleted: () => {
        toast("This job was deleted.");
        location.hash = "#/";
        return true;
      },
    });
  }

  // Cases arrive faster than anybody looks: fetch the list at most once a second.
  _later() {
    this.timer ??= setTimeout(
      async () => {
        this.timer = null;
        await this.list.refresh().catch(() => {});
        if (!this.list.chosen && this.list.total && innerWidth >= 800) this.list.step(0);
      },
      ENDED.includes(this.job.state) ? 0 : 1000,
    );
  }

  _state() {
    const { job } = this;
    const running = !ENDED.includes(job.state);
    const words =
      job.state === "done" ? many(job.cases, "case") : `${job.done.toLocaleString("en")} of ${many(job.cases, "case")}`;
    const bar = el("progress", { max: job.cases || 1, value: job.done, "aria-label": "Cases scored" });
    this.state.replaceChildren(
      el("h1", { class: "job-title", text: job.path ?? `Job ${job.id.slice(0, 6)}` }),
      badge(job.state, "", job.state),
      el("span", { class: "hint", text: `${words} · ${job.model}` }),
      running ? bar : "",
      running ? button("", "Cancel", () => this._cancel(), { class: "quiet" }) : "",
    );
    const lines = [job.error, ...(job.notes ?? [])].filter(Boolean);
    this.notes.hidden = !lines.length;
    this.notes.open ||= Boolean(job.error);
    this.notes.replaceChildren(
      el("summary", {}, icon("warning"), el("span", { text: many(lines.length, "note") })),
      el(
        "ul",
        {},
        lines.map((text) => el("li", { text })),
      ),
    );
  }

  _cancel() {
    json(`${this.job.url}/cancel`, { method: "POST" }).catch((err) => toast(err.message, "error"));
  }

  async _chosen(item) {
    this._pane("case");
    const address = `#/jobs/${this.job.id}/${item.id}`;
    if (location.hash !== address) history[innerWidth < 800 ? "pushState" : "replaceState"](null, "", address);
    this.inspector.begin(item);
    announce(`${item.name}, score ${number(item.score)}${item.flag ? ", flagged" : ""}`);
    try {
      this.inspector.show(this.job, await this.viewer.show(this.job, item));
    } catch (err) {
      if (err.name !== "AbortError") toast(err.message, "error");
    }
  }

  _reviewed(item) {
    this.list.update(item);
    if (item.review && this.onwards.checked) this.list.step(1);
  }

  _pane(name) {
    this.element.dataset.pane = name;
  }

  key(name) {
    const keys = {
      j: () => this.list.step(1),
      k: () => this.list.step(-1),
      " ": () => this.viewer.controls.toggleHeat(),
      o: () => this.viewer.controls.toggleOutline(),
      s: () => this.viewer.restoration.toggle(),
      0: () => this.viewer.reset(),
      w: () => this.viewer.controls.setTool("window"),
      p: () => this.viewer.controls.setTool("pan"),
      a: () => this.inspector.decide("accept"),
      r: () => this.inspector.decide("reject"),
      ...Object.fromEntries([1, 2, 3, 4, 5].map((n) => [n, () => this.inspector.rate(n)])),
    };
    keys[name]?.();
    return name in keys;
  }
}
