"""The OpenAPI document holds: whatever is sent, the server answers below 500. And trainings, watched while they run."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import save_many
from servers import Server, serving
from test_serve import png

ODD: list[Any] = [
    "",
    "0",
    "-1",
    "x",
    "../..",
    "%2e%2e",
    "é",
    "\u0000",
    "9" * 30,
    "nan",
    "true",
    "a" * 300,
    "0123456789abcdef",
    "[]",
    "{",
]
BODIES: list[Any] = [
    None,
    [],
    {},
    "x",
    7,
    {"path": []},
    {"name": "../x", "data": "."},
    {"verdict": "accept", "rating": 9},
    {"token": 1},
]
ROUNDS = 12  # per endpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    save_many(data / "normals")
    (data / "models").mkdir()
    return data


@pytest.fixture(scope="module")
def server(folder: Path, tiny_bundle: Path) -> Iterator[Server]:
    (folder / "models" / "tiny").symlink_to(tiny_bundle)
    with serving("--models", folder / "models", "--data", folder, "--rate", 0) as found:
        yield found


def test_nothing_that_is_sent_makes_the_server_fail(server: Server) -> None:
    rng, document = random.Random(0), server.http.get("/openapi.json").json()
    job = server.submit(("a.png", png()), model="tiny")
    server.ended(job)
    [case] = server.cases(job)
    known = {"job": [job], "case": [case["id"]], "name": ["tiny", "no"]}
    statuses = set()
    for path, methods in document["paths"].items():
        for method in methods:
            if (method, path) in (("delete", "/api/v1/jobs/{job}"), ("post", "/api/v1/jobs/{job}/cancel")):
                continue  # it is needed to the end
            for _ in range(ROUNDS):
                url = path
                for name, good in known.items():
                    url = url.replace(
                        f"{{{name}}}", str(rng.choice([*good, *good, *good, rng.choice(ODD)])).replace("\u0000", "%00")
                    )
                query = {one["name"]: rng.choice(ODD) for one in methods[method].get("parameters", ()) if one["in"] == "query"}
                chosen = {name: value for name, value in query.items() if rng.random() < 0.4}
                body = rng.choice(BODIES)
                content = json.dumps(body).encode() if rng.random() < 0.8 else bytes(rng.randrange(256) for _ in range(40))
                kind = rng.choice(["application/json", "multipart/form-data; boundary=x", "text/plain", "x"])
                extra: dict[str, Any] = {} if method == "get" else {"content": content, "headers": {"content-type": kind}}
                answer = server.http.request(method, url, params=chosen, **extra)
                statuses.add(answer.status_code)
                assert answer.status_code < 500, (method, url, chosen, content, answer.text)
                if answer.status_code >= 400 and answer.status_code != 405:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert "\n" not in answer.json()["detail"]
    assert {200, 404, 422} <= statuses
    assert server.http.request("TRACE", "/api/v1/jobs").status_code == 405


def events(server: Server, url: str) -> list[tuple[str, Any]]:
    with server.http.stream("GET", url) as stream:
        text = "".join(stream.iter_text())
    found = []
    for block in filter(None, text.split("\n\n")):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        found += [(lines["event"], json.loads(lines["data"]))] if lines else []
    return found


def test_a_training_is_watched_stopped_and_resumed(server: Server) -> None:
    quick = {
        "data": {"size": 32}, "calibrate": {"features": "off"}, "train": {"batch": 8, "log_every": 1},
        "model": {"epochs": 100_000, "width": 2, "hidden": 8, "latent": 4},
    }  # fmt: skip
    start = {"name": "mine", "data": "normals", "method": "ae", "config": quick}
    made = server.http.post("/api/v1/trainings", json=start)
    assert made.status_code == 201, made.text
    url = "/api/v1/trainings/mine"
    with server.http.stream("GET", f"{url}/events") as stream:
        seen = ""
        for text in stream.iter_text():
            seen += text
            if seen.count("event: log") >= 3:
                break
    assert '"loss"' in seen
    stopped = server.http.post(f"{url}/stop").json()
    assert stopped["state"] == "stopped", stopped
    lines = server.get("/trainings/mine/log")["total"]
    assert lines >= 3
    assert server.http.post(f"{url}/stop").status_code == 409
    assert server.http.post(f"{url}/resume").json()["state"] == "running"
    assert server.http.post(f"{url}/resume").status_code == 409
    assert server.http.post(f"{url}/stop").json()["state"] == "stopped"
    assert server.get("/trainings/mine/log")["total"] >= lines - 1


def test_a_finished_training_is_a_model(server: Server) -> None:
    quick = {"data": {"size": 32}, "calibrate": {"features": "off"}}
    made = server.http.post(
        "/api/v1/trainings", json={"name": "bright", "data": "normals", "method": "brightness", "config": quick}
    )
    assert made.status_code == 201, made.text
    assert events(server, "/api/v1/trainings/bright/events")[-1] == ("state", {"name": "bright", "state": "done", "error": None})
    job = server.submit(("a.png", png()), model="bright")
    assert server.ended(job)["state"] == "done"
    kind, shown = events(server, f"/api/v1/jobs/{job}/events")[-1]
    assert (kind, shown["state"]) == ("job", "done")
    assert server.http.post("/api/v1/trainings", json={"name": "bright", "data": "normals"}).status_code == 409
    for wrong, expected in (
        ({"method": "os:system"}, "unknown method"),
        ({"config": {"train": {"cache": "/tmp/x"}}}, "cannot be set from here"),
        ({"config": {"train": {"lrr": 1}}}, "did you mean 'train.lr'?"),
        ({"data": "../.."}, "no such file or folder"),
        ({"name": "../x"}, "is not a name"),
    ):
        refused = server.http.post("/api/v1/trainings", json={"name": "x", "data": "normals", **wrong})
        assert (refused.status_code, expected in refused.json()["detail"]) == (422, True), refused.text
    failed = server.http.post(
        "/api/v1/trainings", json={"name": "few", "data": "models", "method": "brightness", "config": quick}
    )
    assert failed.status_code == 201
    [(_, state)] = [event for event in events(server, "/api/v1/trainings/few/events") if event[1].get("state") != "running"]
    assert (state["state"], "no PNG" in state["error"]) == ("failed", True)
