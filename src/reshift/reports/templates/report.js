"use strict";
// Data, threshold and counts. Curves are in report_charts.js, cases in report_gallery.js.

const root = document.documentElement;
const noteError = (message) => { root.dataset.errors = `${root.dataset.errors || ""}${message}\n`; };
window.addEventListener("error", (event) => noteError(event.message));
window.addEventListener("unhandledrejection", (event) => noteError(String(event.reason)));

const byId = (id) => document.getElementById(id);
const report = JSON.parse(byId("report-data").textContent);
const heatScale = report.heat_scale > 0 ? report.heat_scale : 1;
const scored = report.cases.filter((item) => item.score !== null);
const normals = scored.filter((item) => item.label === 0);
const abnormals = scored.filter((item) => item.label === 1);
const unknowns = scored.filter((item) => item.label !== 0 && item.label !== 1);
const state = { threshold: report.image_threshold };

const OUTCOMES = {
  fp: "False positives", fn: "False negatives", tp: "True positives", tn: "True negatives",
  flagged: "Flagged, no label", clear: "Not flagged, no label",
};

/** Build an HTML element; text goes in as text, so names and notes can never become markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function format(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
  const digits = size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 || size === 0 ? 3 : 5;
  return value.toFixed(digits).replace("-", "−");
}

function formatP(p) {
  return p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
}

/** At the calibrated threshold the run's own decision counts; elsewhere the score is compared here. */
function isFlagged(item) {
  if (state.threshold === report.image_threshold && item.flag !== null) return item.flag;
  if (state.threshold === null || item.score === null) return null;
  return item.score > state.threshold;
}

function outcome(item) {
  const flagged = isFlagged(item);
  if (flagged === null) return null;
  if (item.label === 1) return flagged ? "tp" : "fn";
  if (item.label === 0) return flagged ? "fp" : "tn";
  return flagged ? "flagged" : "clear";
}

function countOutcomes() {
  const counts = { tp: 0, fp: 0, tn: 0, fn: 0, flagged: 0, clear: 0 };
  for (const item of report.cases) {
    const kind = outcome(item);
    if (kind !== null) counts[kind] += 1;
  }
  return counts;
}

function showReadout(counts) {
  const unlabelled = normals.length + abnormals.length === 0;
  byId("prevalence-hint").hidden = unlabelled;
  const rows = unlabelled
    ? [["Flagged", counts.flagged, counts.flagged + counts.clear, "images", "no images"]]
    : [
      ["Sensitivity", counts.tp, counts.tp + counts.fn, "abnormal flagged", "no abnormal images"],
      ["Specificity", counts.tn, counts.tn + counts.fp, "normal not flagged", "no normal images"],
      ["PPV", counts.tp, counts.tp + counts.fp, "flagged are abnormal", "nothing is flagged"],
      ["NPV", counts.tn, counts.tn + counts.fn, "unflagged are normal", "everything is flagged"],
    ];
  byId("readout").replaceChildren(...rows.map(([name, part, whole, meaning, reason]) => {
    const share = whole > 0 ? `${(100 * part / whole).toFixed(1)}\u202f%` : "–";
    const detail = whole > 0 ? `${part} of ${whole} ${meaning}` : state.threshold === null ? "no threshold set" : reason;
    const value = el("dd", {}, share, el("small", {}, detail));
    return el("div", {}, el("dt", {}, name), value);
  }));
}

function scoreRange() {
  const values = scored.map((item) => item.score);
  if (report.image_threshold !== null) values.push(report.image_threshold);
  if (values.length === 0) return [0, 1];
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  const margin = (high - low) * 0.03 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

function thresholdState() {
  const calibrated = report.image_threshold;
  if (scored.length === 0) return "There are no scores to compare with a threshold.";
  if (calibrated === null) {
    return state.threshold === null
      ? "No threshold was calibrated. Move the slider to explore one; it will have been chosen with the test images in view."
      : "Explored on the test images, not calibrated: do not report these numbers as performance.";
  }
  return state.threshold === calibrated
    ? `Calibrated on healthy images: ${format(calibrated)}.`
    : `Moved to ${format(state.threshold)}, calibrated is ${format(calibrated)}: the numbers below are exploratory.`;
}

/** Collapse bursts of slider events into one redraw per frame. */
function oncePerFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
}

function wireThreshold(update) {
  const [low, high] = scoreRange();
  const slider = byId("threshold");
  const number = byId("threshold-number");
  const reset = byId("threshold-reset");
  Object.assign(slider, { min: low, max: high, step: (high - low) / 1000 });
  if (report.image_threshold === null) reset.textContent = "Clear";
  const set = (value, source) => {
    state.threshold = value;
    // The slider only knows its own steps, so the exact value is kept apart from it.
    if (source !== slider) slider.value = value === null ? (low + high) / 2 : value;
    if (source !== number) number.value = value === null ? "" : Number(value.toPrecision(6));
    slider.setAttribute("aria-valuetext", value === null ? "not set" : format(value));
    reset.disabled = value === report.image_threshold;
    update();
  };
  slider.addEventListener("input", () => set(Number(slider.value), slider));
  number.addEventListener("input", () => {
    if (number.value !== "" && Number.isFinite(Number(number.value))) set(Number(number.value), number);
  });
  reset.addEventListener("click", () => set(report.image_threshold, reset));
  for (const control of [slider, number, reset]) control.disabled = scored.length === 0;
  set(report.image_threshold, null);
}

async function start() {
  const moveMarkers = drawCharts(scoreRange());
  const gallery = startGallery();
  const redraw = () => {
    const counts = countOutcomes();
    showReadout(counts);
    byId("threshold-state").textContent = thresholdState();
    moveMarkers(counts);
    return gallery.refresh(counts);
  };
  wireThreshold(oncePerFrame(redraw));
  // The first drawing does not wait for a frame, so that a page opened in a background tab is complete too.
  await redraw();
  root.dataset.ready = "true";
}

document.addEventListener("DOMContentLoaded", start);
