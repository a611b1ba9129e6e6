const api = await (await fetch("/openapi.json")).json();
const element = (name, text, ...children) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
};
const panel = (...parts) => {
  const made = element(...parts);
  made.className = "panel prose";
  return made;
};
const place = document.getElementById("endpoints");
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    const inputs = (about.parameters ?? []).map((one) =>
      element("li", `${one.name} (${one.in}${one.required ? ", required" : ""}): ${one.description ?? ""}`),
    );
    const body = about.requestBody ? [element("pre", JSON.stringify(about.requestBody.content, null, 1))] : [];
    place.append(
      panel(
        "section",
        "",
        element("h2", `${method.toUpperCase()} ${path}`),
        element("p", about.description),
        element("ul", "", ...inputs),
        ...body,
      ),
    );
  }
}
