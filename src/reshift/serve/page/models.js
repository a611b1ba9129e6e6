// Models: a list, and the card of one with its thresholds and warnings.

import { API, json } from "./api.js";
import { histogram } from "./chart.js";
import { backTo, el, facts, many, notice, number, table, when } from "./dom.js";
import { markdown } from "./markdown.js";

export async function show(place, [name]) {
  if (name) place.replaceChildren(card(await json(`${API}/models/${encodeURIComponent(name)}`)));
  else place.replaceChildren(list((await json(`${API}/models`)).items));
  return null;
}

function list(models) {
  const heads = ["Model", "Method", "Learned from", "Image threshold", "Pixel threshold", "Trained"];
  const row = (model) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("a", { href: `#/models/${encodeURIComponent(model.name)}`, text: model.name }),
        model.error && el("span", { class: "hint error", text: model.error }),
      ),
      el("td", { text: model.method ?? "–" }),
      el("td", { class: "num", text: model.images ? many(model.images, "image") : "–" }),
      el("td", { class: "num", text: number(model.image_threshold) }),
      el("td", { class: "num", text: number(model.pixel_threshold) }),
      el("td", { text: when(model.trained) }),
    );
  return el(
    "div",
    { class: "page" },
    el("h1", { text: "Models" }),
    models.length
      ? table("models", heads, models.map(row))
      : el("p", { class: "empty" }, "No models yet. ", el("a", { href: "#/trainings", text: "Train one" }), "."),
  );
}

function card(model) {
  const rows = [
    ["Method", model.method ?? "–"],
    ["Learned from", model.images ? many(model.images, "healthy image") : "–"],
    ["Trained", when(model.trained)],
    ["Calibrated on", model.calibrated_on ? many(model.calibrated_on, "normal image") : "not calibrated"],
    ["Image threshold", quantile(model.image_threshold, model.image_quantile, "normal images")],
    ["Pixel threshold", quantile(model.pixel_threshold, model.pixel_quantile, "their pixels")],
    ["SHA-256", model.model_sha256?.slice(0, 16) ?? "–"],
  ];
  const scores = model.scores_of_normals.filter(Number.isFinite);
  return el(
    "div",
    { class: "page" },
    backTo("#/models", "All models"),
    el("h1", { text: model.name }),
    model.error && el("p", { class: "notice error", text: model.error }),
    model.warnings.map((text) => notice("warn", text)),
    el(
      "div",
      { class: "columns" },
      el("section", { class: "panel" }, el("h2", { text: "Thresholds" }), facts(rows)),
      scores.length
        ? el(
            "section",
            { class: "panel" },
            el("h2", { text: "Scores of normal images" }),
            histogram(
              scores,
              model.image_threshold,
              `Histogram of the scores of ${scores.length} normal images; threshold ${number(model.image_threshold)}`,
            ),
          )
        : null,
    ),
    el(
      "section",
      { class: "panel prose" },
      el("h2", { text: "Model card" }),
      model.card ? markdown(model.card) : el("p", { class: "hint", text: "This bundle has no card." }),
    ),
    model.config &&
      el(
        "details",
        { class: "panel" },
        el("summary", { text: "Settings" }),
        el("pre", { tabindex: "0", text: JSON.stringify(model.config, null, 2) }),
      ),
  );
}

const quantile = (threshold, share, what) =>
  threshold === null || threshold === undefined
    ? "–"
    : `${number(threshold)}${share ? ` (quantile ${number(share, 4)} of ${what})` : ""}`;
