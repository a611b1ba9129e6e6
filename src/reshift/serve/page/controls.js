// The viewer's tools: heat-map, opacity, threshold, outline, what a drag does, restoration, reset.

import { colour, RAMPS } from "./colours.js";
import { button, el, icon, number, remember, remembered } from "./dom.js";

const STEPS = 1000; // of the threshold slider

const toggle = (name, text, key, onclick, attributes = {}) =>
  button(name, text, onclick, { class: "tool", "aria-pressed": "false", title: key ? `${text} (${key})` : text, ...attributes });

export class Controls {
  // ``viewer`` gets change(): colours changed; and restore(), reset().
  constructor(viewer) {
    this.viewer = viewer;
    this.look = {
      heat: true,
      outline: remembered("outline") === "on",
      threshold: 0,
      full: 1,
      opacity: Number(remembered("opacity", "75")) / 100,
      ramp: remembered("ramp") in RAMPS ? remembered("ramp") : "ember",
    };
    this.tool = "window";
    this.top = 1;
    this.calibrated = null;
    this._build();
    this._show();
  }

  _build() {
    const { look } = this;
    this.heat = toggle("layers", "Heat-map", "Space", () => this.toggleHeat());
    this.outline = toggle("outline", "Outline", "O", () => this.toggleOutline());
    this.restoration = toggle("compare", "Restoration", "S", () => this.viewer.restoration.toggle());
    this.tools = ["window", "pan"].map((name) =>
      toggle(name, { window: "Grey window", pan: "Pan" }[name], { window: "W", pan: "P" }[name], () => this.setTool(name)),
    );
    this.reset = button("reset", "Reset view", () => this.viewer.reset(), { class: "tool", title: "Reset view (0)" });
    this.threshold = el("input", { type: "range", min: 0, max: STEPS, step: 1, class: "threshold", oninput: () => this._slid() });
    this.value = el("output", { class: "value" });
    this.default = button("reset", "", () => this.setThreshold(this.calibrated), {
      class: "tool quiet",
      "aria-label": "Back to the calibrated threshold",
      title: "Back to the calibrated threshold",
    });
    this.opacity = el("input", {
      type: "range",
      min: 0,
      max: 100,
      step: 1,
      value: Math.round(100 * look.opacity),
      oninput: () => this._faded(),
    });
    this.percent = el("output", { class: "value" });
    this.ramp = el(
      "select",
      { "aria-label": "Colours", onchange: () => this._recoloured() },
      Object.keys(RAMPS).map((name) =>
        el("option", { value: name, text: name[0].toUpperCase() + name.slice(1), selected: name === look.ramp }),
      ),
    );
    this.bar = el("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
    this.low = el("span");
    this.high = el("span");
    this.legend = el("div", { class: "legend" }, this.low, this.bar, this.high, this.ramp);
    this.element = el(
      "div",
      { class: "controls", role: "toolbar", "aria-label": "Viewer" },
      el("div", { class: "group" }, this.heat, this.outline, this.restoration),
      el("div", { class: "group", role: "group", "aria-label": "A drag changes" }, this.tools),
      el("div", { class: "group" }, this.reset),
      el(
        "div",
        { class: "group sliders" },
        el(
          "div",
          { class: "pair" },
          el("label", { class: "slider" }, el("span", { text: "Threshold" }), this.threshold, this.value),
          this.default,
        ),
        el("label", { class: "slider" }, el("span", { text: "Opacity" }), this.opacity, this.percent),
      ),
    );
  }

  // A new case: what its job says of thresholds. A threshold that the reader moved stays within the job.
  calibrate(job, pixelThreshold, heatScale) {
    if (this.job === job) return;
    this.job = job;
    this.calibrated = pixelThreshold;
    this.top = 2 * (heatScale ?? 0.5);
    Object.assign(this.look, { threshold: pixelThreshold ?? 0, full: heatScale ?? 1 });
    this._show();
  }

  // The highest value of a case. It decides what is marked only where the model has no calibration.
  reach(highest) {
    this.top = Math.max(this.top, highest, 1e-12);
    if (this.calibrated !== null) return this._show();
    this.calibrated = highest / 2;
    this.look.full = highest;
    this.setThreshold(this.calibrated);
  }

  setThreshold(value) {
    this.look.threshold = value;
    this._show();
    this.viewer.change();
  }

  setTool(name) {
    this.tool = name;
    this._show();
  }

  setHeat(on) {
    this.look.heat = on;
    this._show();
  }

  toggleHeat() {
    this.setHeat(!this.look.heat);
    this.viewer.change();
  }

  toggleOutline() {
    this.look.outline = !this.look.outline;
    remember("outline", this.look.outline ? "on" : "off");
    this._show();
    this.viewer.change();
  }

  setRestoration(on, why = "") {
    this.restoration.setAttribute("aria-pressed", String(on));
    this.restoration.disabled = Boolean(why);
    this.restoration.title = why || "Restoration: the image as it would look without disease (S)";
  }

  _slid() {
    this.setThreshold((this.top * this.threshold.value) / STEPS);
  }

  _faded() {
    this.look.opacity = this.opacity.value / 100;
    remember("opacity", this.opacity.value);
    this._show();
    this.viewer.change();
  }

  _recoloured() {
    this.look.ramp = this.ramp.value;
    remember("ramp", this.ramp.value);
    this._show();
    this.viewer.change();
  }

  _show() {
    const { look } = this;
    this.heat.setAttribute("aria-pressed", String(look.heat));
    this.outline.setAttribute("aria-pressed", String(look.outline));
    for (const [i, name] of ["window", "pan"].entries()) this.tools[i].setAttribute("aria-pressed", String(this.tool === name));
    this.threshold.value = Math.round((STEPS * look.threshold) / this.top);
    this.value.textContent = number(look.threshold);
    const own = this.calibrated !== null && look.threshold === this.calibrated;
    this.threshold.setAttribute("aria-valuetext", `${number(look.threshold)}${own ? ", calibrated" : ""}`);
    this.default.disabled = own || this.calibrated === null;
    this.low.textContent = number(look.threshold);
    this.high.textContent = number(look.full);
    this.legend.classList.toggle("off", !look.heat || look.outline);
    this.percent.textContent = `${Math.round(100 * look.opacity)} %`;
    for (const control of [this.threshold, this.opacity, this.ramp]) control.disabled = !look.heat;
    this._paintRamp();
  }

  _paintRamp() {
    const context = this.bar.getContext("2d");
    const pixels = context.createImageData(256, 1);
    for (let i = 0; i < 256; i++) pixels.data.set([...colour(RAMPS[this.look.ramp], 0.4 + (0.6 * i) / 255), 255], 4 * i);
    context.putImageData(pixels, 0, 0);
  }
}
