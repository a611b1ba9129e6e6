// Requests to the server. What fails because of the network, or because the server is busy, is tried again and said.

export const API = "/api/v1";
export const session = {}; // what GET /session says

const BUSY = [429, 502, 503, 504];
const TRIES = 6;
let offline = false;

export class Problem extends Error {
  constructor(status, body, statusText) {
    super(body?.detail || `the server answered ${status} ${statusText ?? ""}`.trim());
    this.status = status;
    this.lines = body?.errors ?? [];
  }
}

export const pause = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

export function setOffline(now) {
  if (offline === now) return;
  offline = now;
  dispatchEvent(new CustomEvent("reshift-connection", { detail: { offline } }));
}

// The answer of a request that succeeded. Only what may be repeated without harm is repeated.
async function answer(url, options = {}) {
  const repeatable = (options.method ?? "GET") !== "POST";
  for (let tried = 0; ; tried++) {
    let found;
    try {
      found = await fetch(url, options);
    } catch (err) {
      if (options.signal?.aborted) throw err;
      if (!repeatable) throw new Error("the server cannot be reached; check the connection and try again", { cause: err });
      setOffline(true);
      await pause(Math.min(8, 0.5 * 2 ** tried), options.signal);
      continue;
    }
    setOffline(false);
    if (found.ok) return found;
    if (BUSY.includes(found.status) && repeatable && tried < TRIES) {
      await pause(Number(found.headers.get("Retry-After")) || 1, options.signal);
      continue;
    }
    const problem = new Problem(found.status, await found.json().catch(() => null), found.statusText);
    if (found.status === 401 && !url.endsWith("/session")) dispatchEvent(new CustomEvent("reshift-signed-out"));
    throw problem;
  }
}

export async function json(url, { method = "GET", body, signal } = {}) {
  const options = { method, signal };
  if (body !== undefined) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const found = await answer(url, options);
  return found.status === 204 ? null : found.json();
}

// 16-bit levels of one plane; value = level · scale + offset.
export async function levels(url, signal) {
  const found = await answer(url, { signal });
  const numbers = (name) => found.headers.get(name).split(",").map(Number);
  return {
    shape: numbers("X-Shape"),
    spacing: numbers("X-Spacing"),
    scale: numbers("X-Scale")[0],
    offset: numbers("X-Offset")[0],
    data: new Uint16Array(await found.arrayBuffer()),
  };
}

// Server-sent events until a handler returns true, or until the returned function is called.
export function events(url, handlers) {
  const source = new EventSource(url);
  source.addEventListener("open", () => setOffline(false));
  source.addEventListener("error", () => source.readyState === EventSource.CONNECTING && setOffline(true));
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      if (name !== "error" && handle(JSON.parse(event.data))) source.close();
    });
  }
  return () => source.close();
}

// Upload files as one job. XMLHttpRequest, because fetch does not say how far an upload is.
export function upload(files, fields, progress, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  for (const { file, path } of files) form.append("files", file, path);
  const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // sent again with a retry: the job is accepted once
  return attempt(form, key, progress, signal, 0);
}

async function attempt(form, key, progress, signal, tried) {
  const sent = await send(form, key, progress, signal);
  const body = sent.body ? JSON.parse(sent.body) : null;
  if (sent.status === 200 || sent.status === 201) return body;
  const lost = sent.status === 0;
  if ((lost || BUSY.includes(sent.status)) && tried < TRIES) {
    const seconds = Number(sent.wait) || Math.min(8, 2 ** tried);
    progress({ waiting: seconds, why: lost ? "the connection was lost" : body?.detail });
    await pause(seconds, signal);
    return attempt(form, key, progress, signal, tried + 1);
  }
  if (sent.status === 401) dispatchEvent(new CustomEvent("reshift-signed-out"));
  throw lost ? new Error("the server cannot be reached; the upload was given up") : new Problem(sent.status, body);
}

function send(form, key, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const done = () => {
      const isJson = /json/.test(request.getResponseHeader("Content-Type") ?? "");
      resolve({ status: request.status, body: isJson && request.responseText, wait: request.getResponseHeader("Retry-After") });
    };
    request.upload.addEventListener("progress", (event) => progress({ sent: event.loaded, total: event.total }));
    request.addEventListener("load", done);
    request.addEventListener("error", done);
    request.addEventListener("abort", () => reject(signal.reason));
    signal?.addEventListener("abort", () => request.abort());
    request.open("POST", `${API}/jobs`);
    request.setRequestHeader("Idempotency-Key", key);
    request.send(form);
  });
}
