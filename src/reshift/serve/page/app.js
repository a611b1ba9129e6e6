const api = "/api/v1";
const at = (id) => document.getElementById(id);
const levels = async (url) => {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error((await answer.json()).detail);
  const head = (name) => answer.headers.get(name).split(",").map(Number);
  return { shape: head("X-Shape"), scale: head("X-Scale")[0], offset: head("X-Offset")[0], data: new Uint16Array(await answer.arrayBuffer()) };
};
let shown = null;

async function json(url, options) {
  const answer = await fetch(url, options);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

function draw() {
  if (!shown) return;
  const { image, heat, window, scale } = shown;
  const [rows, columns, channels] = image.shape;
  const canvas = at("view");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const out = context.createImageData(columns, rows);
  const from = (scale * at("threshold").value) / 1000;
  for (let i = 0; i < rows * columns; i++) {
    const value = image.data[i * channels] * image.scale + image.offset;
    const grey = (255 * (value - window[0])) / (window[1] - window[0]);
    const level = heat.data[i];
    const hot = level === 65535 ? 0 : Math.min(1, (level * heat.scale + heat.offset) / scale);
    const alpha = level !== 65535 && level * heat.scale + heat.offset > from ? 0.4 + 0.4 * hot : 0;
    out.data.set([grey * (1 - alpha) + 250 * alpha, grey * (1 - alpha) + 150 * alpha * hot, grey * (1 - alpha), 255], 4 * i);
  }
  context.putImageData(out, 0, 0);
}

async function show(item, row) {
  const about = await json(item.url);
  if (!about.grid) return;
  const best = about.slice_scores.reduce((a, b) => (a && a.score > b.score ? a : b), null);
  const index = best ? best.index : 0;
  const [image, heat] = await Promise.all(["image", "heat"].map((kind) => levels(`${item.url}/${kind}?index=${index}`)));
  shown = { image, heat, window: about.grid.window, scale: about.heat_scale || 1 };
  for (const other of at("cases").children) other.removeAttribute("aria-selected");
  row.setAttribute("aria-selected", "true");
  at("threshold").disabled = false;
  draw();
}

async function list(job) {
  const { items } = await json(`${job.url}/cases`);
  at("cases").replaceChildren(...items.map((item) => {
    const row = document.createElement("tr");
    const picture = document.createElement("img");
    picture.width = picture.height = 64;
    picture.alt = "";
    if (item.has_map) picture.src = `${item.url}/thumbnail.png?side=64`;
    const button = document.createElement("button");
    button.textContent = item.name;
    button.addEventListener("click", () => show(item, row));
    const cells = [picture, button, item.error || item.score?.toPrecision(4), item.p_value?.toPrecision(3) ?? "", item.flag ? "flagged" : ""];
    for (const cell of cells) {
      const place = document.createElement("td");
      place.append(cell);
      row.append(place);
    }
    return row;
  }));
}

at("threshold").addEventListener("input", draw);
at("upload").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    let job = await json(`${api}/jobs`, { method: "POST", body: new FormData(event.target) });
    while (job.state === "queued" || job.state === "running") {
      at("state").textContent = `${job.state}: ${job.done} of ${job.cases}`;
      job = await json(`${job.url}?wait=2`);
    }
    at("state").textContent = `${job.state}: ${job.cases} cases, ${job.failures} failed${job.error ? `: ${job.error}` : ""}`;
    await list(job);
  } catch (err) {
    at("state").textContent = err.message;
  }
});

const { items } = await json(`${api}/models`);
at("model").replaceChildren(...items.map((model) => new Option(model.name, model.name)));
