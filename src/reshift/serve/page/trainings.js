// Trainings: start one, watch its loss, stop and resume it.

import { API, events, json, session } from "./api.js";
import { lineChart } from "./chart.js";
import { announce, backTo, badge, button, el, facts, field, number, table, toast } from "./dom.js";

export async function show(place, [name]) {
  if (!name) {
    place.replaceChildren(list(await json(`${API}/trainings`)));
    return null;
  }
  const monitor = new Monitor(await json(`${API}/trainings/${encodeURIComponent(name)}`));
  place.replaceChildren(monitor.element);
  monitor.watch();
  return monitor;
}

const progressOf = (last) =>
  last?.step === undefined
    ? "–"
    : `${last.stage}: step ${last.step.toLocaleString("en")}${last.steps ? ` of ${last.steps.toLocaleString("en")}` : ""}`;

function list({ items, methods }) {
  const heads = ["Run", "State", "Method", "Progress", "Loss", "By"];
  const row = (run) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: `#/trainings/${encodeURIComponent(run.name)}`, text: run.name })),
      el("td", {}, badge(run.state, "", run.state)),
      el("td", { text: run.method ?? "–" }),
      el("td", { text: progressOf(run.last) }),
      el("td", { class: "num", text: number(run.last?.loss) }),
      el("td", { text: run.owner ?? "–" }),
    );
  return el(
    "div",
    { class: "page" },
    el("h1", { text: "Trainings" }),
    items.length ? table("trainings", heads, items.map(row)) : el("p", { class: "empty", text: "No trainings yet." }),
    starter(methods),
  );
}

function starter(methods) {
  if (!session.paths) {
    return el("p", {
      class: "notice",
      text: "To train from here, start the server with --data DIR, a folder of healthy images.",
    });
  }
  const name = el("input", {
    name: "name",
    required: true,
    maxlength: 80,
    pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*",
    autocomplete: "off",
  });
  const data = el("input", {
    name: "data",
    required: true,
    placeholder: "healthy/manifest.csv",
    autocomplete: "off",
    spellcheck: "false",
  });
  const method = el(
    "select",
    {},
    methods.map((one) => el("option", { value: one.name, text: one.name, title: one.about })),
  );
  const about = el("span", { class: "hint", text: methods[0]?.about });
  method.addEventListener("change", () => (about.textContent = methods.find((one) => one.name === method.value).about));
  const profile = el(
    "select",
    {},
    ["quick", "paper"].map((value) => el("option", { value, text: value })),
  );
  const seed = el("input", { type: "number", min: 0, max: 2 ** 31 - 1, value: 0, required: true });
  const settings = el("textarea", { rows: 3, spellcheck: "false", placeholder: "train.lr = 1e-4\ndata.size = 64" });
  const error = el("p", { class: "notice error", role: "alert", hidden: true });
  const start = async (event) => {
    event.preventDefault();
    error.hidden = true;
    try {
      const body = {
        name: name.value,
        data: data.value,
        method: method.value,
        profile: profile.value,
        seed: Number(seed.value),
        config: parse(settings.value),
      };
      const made = await json(`${API}/trainings`, { method: "POST", body });
      location.hash = `#/trainings/${encodeURIComponent(made.name)}`;
    } catch (err) {
      error.textContent = err.message;
      error.hidden = false;
    }
  };
  return el(
    "section",
    { class: "panel", "aria-labelledby": "new-title" },
    el("h2", { id: "new-title", text: "New training" }),
    el(
      "form",
      { class: "grid-form", onsubmit: start },
      field("Name", name, "Of the run, and of the model it gives"),
      field("Healthy images", data, "A folder or manifest below --data"),
      el("label", { class: "field" }, el("span", { class: "field-name", text: "Method" }), method, about),
      field("Profile", profile, "quick: minutes on a CPU; paper: as published"),
      field("Seed", seed),
      field("Settings", settings, "One per line, as in a TOML file; may stay empty"),
      error,
      el("div", { class: "line" }, el("button", { class: "primary", text: "Start" })),
    ),
  );
}

// "train.lr = 1e-4" per line → {train: {lr: 1e-4}}
export function parse(text) {
  const found = {};
  for (const line of text
    .split("\n")
    .map((part) => part.trim())
    .filter((part) => part && !part.startsWith("#"))) {
    const match = /^([\w.-]+)\s*=\s*(.+)$/.exec(line);
    if (!match) throw new Error(`'${line}' is not a setting; write NAME = VALUE`);
    const keys = match[1].split(".");
    const inner = keys.slice(0, -1).reduce((table, key) => (table[key] ??= {}), found);
    try {
      inner[keys.at(-1)] = JSON.parse(match[2]);
    } catch {
      inner[keys.at(-1)] = match[2].replace(/^(['"])(.*)\1$/, "$2");
    }
  }
  return found;
}

class Monitor {
  constructor(run) {
    this.run = run;
    this.lines = [];
    this.log = el("input", { type: "checkbox", onchange: () => this._draw() });
    this.state = el("div", { class: "line" });
    this.charts = el("div", { class: "columns charts" });
    this.error = el("p", { class: "notice error", hidden: true });
    this.element = el(
      "div",
      { class: "page" },
      backTo("#/trainings", "All trainings"),
      el("h1", { text: run.name }),
      this.state,
      this.error,
      el("label", { class: "check" }, this.log, el("span", { text: "Logarithmic loss" })),
      this.charts,
      settings(run),
    );
    this._state(run.state, run.error);
  }

  watch() {
    this.stop?.();
    this.lines = [];
    this.stop = events(`${this.run.url}/events`, {
      log: (line) => {
        this.lines.push(line);
        this._plan();
      },
      reset: () => {
        this.lines = [];
      },
      state: ({ state, error }) => {
        this._state(state, error);
        announce(`Training ${state}`);
        this._plan();
        return state !== "running";
      },
    });
  }

  close() {
    this.stop?.();
  }

  _state(state, error) {
    const act = (verb) => async () => {
      try {
        const run = await json(`${this.run.url}/${verb}`, { method: "POST" });
        this._state(run.state, run.error);
        if (verb === "resume") this.watch();
      } catch (err) {
        toast(err.message, "error");
      }
    };
    const controls = { running: ["stop", "Stop"], stopped: ["resume", "Resume"], failed: ["resume", "Resume"] }[state];
    this.where = el("span", { class: "hint", text: progressOf(this.lines.at(-1) ?? this.run.last) });
    this.state.replaceChildren(
      badge(state, "", state),
      this.where,
      controls ? button("", controls[1], act(controls[0])) : "",
      state === "done"
        ? el("a", { class: "as-button", href: `#/models/${encodeURIComponent(this.run.name)}`, text: "Model card" })
        : "",
    );
    this.error.textContent = error ?? "";
    this.error.hidden = !error;
  }

  _plan() {
    this.planned ||= requestAnimationFrame(() => {
      this.planned = 0;
      this._draw();
    });
  }

  _draw() {
    const stages = byStage(this.lines.filter((line) => line.loss !== undefined));
    this.where.textContent = progressOf(this.lines.at(-1) ?? this.run.last);
    const panels = [...stages].map(([stage, lines]) => losses(stage, lines, this.log.checked));
    this.charts.replaceChildren(...(panels.length ? panels : [el("p", { class: "empty", text: "No losses are logged yet." })]));
  }
}

function losses(stage, lines, log) {
  const last = lines.at(-1);
  const label = `Loss of ${stage}, last ${number(last.loss)} at step ${last.step}`;
  const points = lines.map((line) => [line.step, line.loss]);
  const text = `loss ${number(last.loss)} · learning rate ${number(last.lr)} · ${Math.round(last.seconds)} s`;
  const chart = lineChart(points, { label, xMax: last.steps ?? 0, log });
  return el("section", { class: "panel" }, el("h2", { text: stage }), chart, el("p", { class: "hint", text }));
}

function byStage(lines) {
  const found = new Map();
  for (const line of lines) {
    if (!found.has(line.stage)) found.set(line.stage, []);
    found.get(line.stage).push(line);
  }
  return found;
}

function settings(run) {
  const rows = [
    ["Method", run.method],
    ["Data", run.data],
    ["Profile", run.profile],
    ["Seed", run.seed],
    ["Started by", run.owner],
  ].filter(([, value]) => value !== null && value !== undefined);
  const own =
    run.config && Object.keys(run.config).length ? el("pre", { tabindex: "0", text: JSON.stringify(run.config, null, 2) }) : null;
  return rows.length ? el("section", { class: "panel" }, el("h2", { text: "Settings" }), facts(rows), own) : null;
}
