"""The page and its server against hostile sentences, names, uploads and requests."""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile
import pytest
import torch
from gradio_client import Client, handle_file
from support import HANGS, ROOT, Server, paint, serve, wait_until

from vse_demo import VSE, ModelConfig
from vse_demo.app import page as app_page
from vse_demo.app.guard import MAX_REQUEST, MAX_UPLOAD, is_free
from vse_demo.encoders import WordTokenizer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
Page, expect = playwright.Page, playwright.expect
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # of gradio_client
expect.set_options(timeout=1000 * HANGS)
TITLE = app_page.TITLE

# Writes down whom a program calls, before anything else of it runs.
EAVESDROPPER = """
import os, socket
ask, dial = socket.getaddrinfo, socket.socket.connect

def note(*what):
    with open(os.environ["CALLS"], "a") as file:
        print(*what, file=file)

def getaddrinfo(host, *rest, **more):
    note(host)
    return ask(host, *rest, **more)

def connect(self, address):
    note(address[0] if isinstance(address, tuple) else "127.0.0.1")  # or a socket in the file system
    return dial(self, address)

socket.getaddrinfo, socket.socket.connect = getaddrinfo, connect
"""

# The app, but a search for WAIT waits until the file GO is there, and before that no upload is deleted.
WAIT = "wait for the file"
PATIENT = f"""
import os, time
from pathlib import Path
from gradio import route_utils
from vse_demo.app import launch, page, service

go = Path(os.environ["GO"])
encode_text, delete = service.Service.encode_text, route_utils.delete_files_created_by_app

def encode_later(self, sentence, model=""):
    while sentence == {WAIT!r} and not go.exists():
        time.sleep(0.05)
    return encode_text(self, sentence, model)

page.KEPT = 1, 1 if os.environ.get("FORGETS") else 900
service.Service.encode_text = encode_later
route_utils.delete_files_created_by_app = lambda blocks, age: delete(blocks, age) if go.exists() else None
launch.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, save_picture: Callable[..., Path]) -> Path:
    """A model, a folder of photos with hostile names and captions, and a listener for network calls."""
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    VSE(config, WordTokenizer(["red", "green", "a", "dog"])).save_pretrained(place / "model")
    captions = {}
    for number, text in enumerate(hostile.MARKUP.values()):
        name = f"{number} {text.replace('/', '∕')}.png"
        save_picture(place / "mine" / name, number)
        captions[name] = [text]
    (place / "mine" / "captions.json").write_text(json.dumps(captions))
    (place / "mine" / "secret.txt").write_text("secret")
    save_picture(place / "secret.png", 50)
    (place / "listener").mkdir()
    (place / "listener" / "sitecustomize.py").write_text(EAVESDROPPER)
    (place / "patient.py").write_text(PATIENT)
    return place


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    settings = {"PYTHONPATH": str(place / "listener"), "CALLS": str(place / "calls"), "HF_HUB_OFFLINE": "0"}
    folders = {"VSE_DEMO_CACHE": str(place / "cache"), "GRADIO_TEMP_DIR": str(place / "uploads")}
    arguments = ["--data", place / "mine", "--model", place / "model"]
    settings["GO"] = str(place / "go")
    with serve(place / "log", *arguments, program=place / "patient.py", **settings, **folders) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    client = Client(server.address, verbose=False)
    yield client
    client.close()


@pytest.fixture
def page(browser, server: Server) -> Iterator[Page]:
    """The page; if any markup is executed, its title changes or a dialog opens."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.set_default_timeout(1000 * HANGS)
    broken: list[str] = []
    page.on("dialog", lambda dialog: (broken.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: broken.append(request.url) if not is_ours(request.url, server) else None)
    page.goto(server.address)
    page.get_by_label("A sentence").wait_for()
    yield page
    page.wait_for_timeout(300)  # for what a broken picture would do
    title = page.title()
    page.close()
    assert title == TITLE
    assert not broken


def is_ours(url: str, server: Server) -> bool:
    return url.startswith((server.address, "data:image/", "blob:")) and not url.endswith("/x")


# In the page


@pytest.mark.parametrize("title", hostile.MARKUP)
def test_markup_in_a_sentence_is_text(page: Page, title: str) -> None:
    search(page, hostile.MARKUP[title])
    title = f"Nearest to “{hostile.MARKUP[title]}”"
    expect(page.locator("#found-pictures .head strong")).to_have_text(title)
    expect(page.locator("#found-pictures .card img")).to_have_count(5)
    expect(page.locator(".reasons").first).to_be_visible()


def search(page: Page, sentence: str) -> None:
    expect(page.locator("#found-pictures .card img")).to_have_count(5)  # the page begins with a search
    page.get_by_label("A sentence").fill(sentence)
    page.keyboard.press("Enter")


def test_names_and_captions_of_a_folder_are_text(page: Page) -> None:
    page.get_by_role("tab", name="Find captions").click()
    page.locator("#samples .card").nth(1).click()
    captions = page.locator("#found-captions .card .caption")
    expect(captions).to_have_count(5)
    assert {*captions.all_text_contents()} <= {*hostile.MARKUP.values()}  # all as they were written
    captions.nth(1).click()
    page.get_by_role("tab", name="The space").click()
    dots = page.locator(".atlas circle[data-tip]")
    dots.first.wait_for(state="attached")
    tips = set()
    page.locator(".atlas svg").focus()
    for key in ["ArrowLeft"] * 15 + ["ArrowRight", "ArrowUp", "ArrowDown", "ArrowRight"] * 15:
        page.keyboard.press(key)
        tips.add(page.locator(".atlas .tip").text_content())
    assert len(tips & {*hostile.MARKUP.values()}) >= 4


def test_a_mark_on_the_map_is_text(page: Page) -> None:
    page.get_by_role("tab", name="The space").click()
    page.locator(".atlas circle[data-tip]").first.wait_for(state="attached")  # UMAP compiles itself
    page.get_by_role("tab", name="Find pictures").click()
    text = hostile.MARKUP["the end of another"]
    search(page, text)
    page.get_by_role("tab", name="The space").click()
    expect(page.locator(".atlas .mark text")).to_contain_text(text[:30])  # cut if long


def test_a_bad_upload_is_refused_with_a_sentence_and_no_markup(page: Page, tmp_path: Path) -> None:
    page.get_by_role("tab", name="Find captions").click()
    bad = tmp_path / "<img src=x onerror=alert(1)>.jpg"
    bad.write_bytes(b"no picture")
    expect(page.locator("#found-captions .card")).to_have_count(5)  # of a picture to begin with
    before = page.locator("#found-captions .cards").get_attribute("data-asked")
    page.locator("#give input[type=file]").set_input_files(bad)
    expect(page.get_by_text(hostile.UNKNOWN).first).to_be_visible()
    heading = page.locator(".toast-title").first.evaluate("each => getComputedStyle(each, '::before').content")
    assert heading == '"Please look again"'
    expect(page.locator("#give .picture-field img")).to_have_count(0)
    assert page.locator("#found-captions .cards").get_attribute("data-asked") == before  # what was there stays


def test_the_name_of_a_photo_in_an_error_is_text(page: Page, place: Path) -> None:
    expect(page.locator("#found-pictures .card img")).to_have_count(5)
    for photo in (place / "mine").glob("*.png"):
        photo.rename(photo.with_suffix(".gone"))
    try:
        search(page, "a dog")
        toast = page.get_by_test_id("toast-text").first
        expect(toast).to_contain_text(".png cannot be read as an image: No such file")
        assert any(text.replace("/", "∕") in toast.text_content() for text in hostile.MARKUP.values())
    finally:
        for photo in (place / "mine").glob("*.gone"):
            photo.rename(photo.with_suffix(".png"))


# Through the API


@pytest.mark.parametrize("text", hostile.TEXTS, ids=lambda text: text.title)
def test_every_sentence_is_answered_or_refused_by_the_api(client: Client, text: hostile.Text) -> None:
    if "\ud800" in text.text:
        pytest.skip("this client cannot send halves of signs; see the next test")
    if text.refused is None:
        assert len(client.predict(text.text, "given", api_name="/find_images")) == 5
    else:
        with pytest.raises(Exception, match=text.refused):
            client.predict(text.text, "given", api_name="/find_images")


def ask(server: Server, endpoint: str, data: list[object]) -> str:
    """The raw answer of the API, as programs without a client library get it."""
    request = urllib.request.Request(
        f"{server.address}/gradio_api/call/{endpoint}",
        json.dumps({"data": data}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=HANGS) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{server.address}/gradio_api/call/{endpoint}/{event}", timeout=HANGS) as answer:
        return answer.read().decode()


def test_half_a_sign_is_answered(server: Server) -> None:
    answer = ask(server, "find_images", ["a \ud800 dog", "given"])
    assert "event: complete" in answer
    assert answer.count('"item"') == 5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([None, "given"], hostile.EMPTY),
        (["a dog", "clip"], "unknown model 'clip'; choose one of given"),
        (["a dog", {}], "model must be text, not an object"),
        ([["a dog", 3], "given"], "sentence must be text, not a number"),
        (["a dog", None], None),  # the default model
        (["a dog"], None),
        ([], "the argument 'sentence' is missing"),
        (["a dog", "given", 5, "and more"], "takes 3 arguments (sentence, model, k), not 4"),
        (["a dog", "given", "5"], "k must be a whole number from 1 to 500, not '5'"),
        (["a dog", "given", True], "k must be a whole number"),
        (["a dog", "given", 501], "k must be a whole number"),
        ([["a dog"] * 65, "given"], "a list must have 1 to 64 items, not 65"),
        ([["a dog", ""], "given"], hostile.EMPTY),
        ([["a", "dog"], {"a": 1}], ""),
        ([{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, "given"], ""),
    ],
)
def test_odd_requests_get_no_traceback(server: Server, data: list[object], reason: str | None) -> None:
    answer = ask(server, "find_images", data)
    assert ("event: error" in answer) == (reason is not None)
    assert (reason or "") in answer
    assert "Traceback" not in answer
    assert "root:" not in answer


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "send a JSON object"),
        (b"[1]", "send a JSON object with the arguments by name"),
        (b"{}", "the argument 'sentence' is missing; this function takes sentence, model, k"),
        (b'{"sentence": "a dog", "base": "http://evil/"}', "unknown argument 'base'"),
        (b'{"sentence": "a dog", "limit": 9}', "unknown argument 'limit'; this function takes sentence, model, k"),
        (b'{"sentence": "a dog", "k": 2.5}', "k must be a whole number from 1 to 500, not 2.5"),
        (b'{"sentence": 5}', "sentence must be text, not a number"),
        (b'{"sentence": null}', hostile.EMPTY),
    ],
)
def test_plain_requests_that_are_wrong_get_a_sentence(server: Server, body: bytes, reason: str) -> None:
    code, content = status(server, "/find_images", "POST", body)
    assert code == 422
    assert reason in json.loads(content)["error"]


@pytest.mark.parametrize(
    "image", ["/etc/passwd", "../secret.png", "http://203.0.113.1/x.png", "data:image/png;base64,AA=="]
)
def test_plain_requests_reach_no_other_file(server: Server, image: str) -> None:
    code, content = status(server, "/find_captions", "POST", json.dumps({"image": image}).encode())
    assert code == 422
    assert b"secret" not in content.replace(image.encode(), b"")


def test_arguments_by_name_are_checked(server: Server) -> None:
    code, content = status(server, "/gradio_api/call/v2/find_images", "POST", b'{"sentence": "a dog", "limit": 9}')
    assert code == 422
    assert b"`limit` is not a valid" in content


def memory(server: Server, what: str) -> int:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


@pytest.fixture(scope="module")
def peak_before(server: Server, client: Client, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The most memory that the server has taken once it has answered a good picture, compilers included."""
    file = tmp_path_factory.mktemp("good") / "good.png"
    paint(1).save(file)
    assert len(client.predict(handle_file(file), "given", api_name="/find_captions")) == 5
    return memory(server, "VmHWM")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("image", hostile.IMAGES, ids=lambda image: image.file)
@pytest.mark.usefixtures("peak_before")
def test_every_upload_is_answered_or_refused(client: Client, tmp_path: Path, image: hostile.ImageCase) -> None:
    file = tmp_path / image.file
    content = image.make()
    file.write_bytes(content)
    if len(content) > MAX_UPLOAD:
        with pytest.raises(Exception, match=r"413|exceeds the maximum file size"):
            client.predict(handle_file(file), "given", api_name="/find_captions")
    elif image.refused is None:
        assert len(client.predict(handle_file(file), "given", api_name="/find_captions")) == 5
    else:
        with pytest.raises(Exception, match=image.refused):
            client.predict(handle_file(file), "given", api_name="/find_captions")


def test_all_these_uploads_took_bounded_memory(server: Server, peak_before: int) -> None:
    assert memory(server, "VmHWM") - peak_before < 2**30


def test_pictures_inside_a_request_are_not_decoded(server: Server) -> None:
    bomb = base64.b64encode(hostile.png(9500, 9500)).decode()
    file = {"path": None, "url": f"data:image/png;base64,{bomb}", "meta": {"_type": "gradio.FileData"}}
    answer = ask(server, "find_captions", [file, "given"])
    assert "event: error" in answer


# What is served, and what is not


def status(server: Server, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    """Of a request whose path is sent as it stands."""
    request = urllib.request.Request(server.address, body, {"Content-Type": "application/json"}, method=method)
    request.full_url = server.address + path
    try:
        with urllib.request.urlopen(request, timeout=HANGS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


SECRETS = [
    "/etc/passwd", "/proc/self/environ", "/dev/zero", "~/.bashrc", "{place}/secret.png", "{place}/mine/secret.txt",
    "{place}/calls", "{place}/model/model.safetensors", "{place}/cache", "{root}/app.py", "{root}/README.md",
    "{root}/.git/config", "{root}/assets/models/grid-bigru/model.safetensors",
]  # fmt: skip
WAYS = [
    "/gradio_api/file={0}", "/gradio_api/file=/{0}", "/gradio_api/file/{0}", "/gradio_api/file={1}",
    "/gradio_api/file={place}/uploads/../..{0}", "/gradio_api/file={place}/uploads/%2e%2e/%2e%2e{1}",
    "/gradio_api/file=file://{0}", "/gradio_api/stream/{0}", "/gradio_api/proxy=file://{0}",
    "/gradio_api/custom_component/0/client/x/{1}", "/custom_component/image/client/../../..{0}",
    "/assets/../../../../../..{0}", "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e{0}", "/assets//{0}",
    "/static//{0}", "/static/..%2f..%2f..%2f..%2f..%2f..{1}", "/svelte/../../../../../../..{0}",
    "/file={0}", "/file/{0}", "/{0}", "/..{0}", "/%2e%2e{0}",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_no_file_of_the_server_is_served(server: Server, place: Path, way: str) -> None:
    for secret in SECRETS:
        path = secret.format(place=place, root=ROOT)
        url = way.format(path, urllib.parse.quote(path, safe=""), place=place)
        code, content = status(server, urllib.parse.quote(url, safe="/=%:~"))
        assert code in (400, 403, 404, 405, 422), (url, code)
        assert b"secret" not in content.replace(path.encode(), b"")
        assert b"root:" not in content


OTHER_ROUTES = [
    ("GET", "/gradio_api/file=http://203.0.113.1/x.png"), ("GET", "/gradio_api/file=HTTPS://203.0.113.1/x.png"),
    ("GET", "/gradio_api/proxy=http://203.0.113.1/"), ("GET", "/gradio_api/proxy=https://x.hf.space/"),
    ("POST", "/gradio_api/process_recording"), ("POST", "/gradio_api/vibe-edit"), ("GET", "/gradio_api/vibe-code"),
    ("POST", "/gradio_api/run-history/connect"), ("GET", "/gradio_api/run-history/buckets"),
    ("GET", "/gradio_api/runs"), ("GET", "/monitoring"), ("GET", "/monitoring/summary"),
    ("GET", "/gradio_api/dev/reload"), ("GET", "/gradio_api/deep_link"), ("POST", "/gradio_api/component_server"),
    ("GET", "/gradio_api/stream/a/b/c/playlist.m3u8"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), OTHER_ROUTES)
def test_routes_that_the_page_does_not_need_are_closed(server: Server, method: str, path: str) -> None:
    assert status(server, path, method, b"{}" if method == "POST" else None)[0] in (403, 404, 405)


@pytest.mark.parametrize("path", ["http://203.0.113.1/x.png", "https://huggingface.co/x.png", "HTTP://203.0.113.1/a"])
@pytest.mark.parametrize("field", ["picture", "sentence"])
def test_nothing_is_fetched_for_a_request(server: Server, path: str, field: str) -> None:
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    if field == "picture":
        answer = ask(server, "find_captions", [file, "given"])
    else:
        answer = ask(server, "find_images", [file, "given"])
    assert "event: error" in answer


def test_a_server_calls_nobody(server: Server, client: Client, place: Path) -> None:
    client.predict("a dog", "given", api_name="/find_images")
    called = set((place / "calls").read_text().split())
    assert called <= {"127.0.0.1", "localhost", "::1", "0.0.0.0", "None"}


# How much is taken


@pytest.mark.parametrize(
    ("route", "size"), [("call/find_images", MAX_REQUEST), ("queue/join", MAX_REQUEST), ("upload", MAX_UPLOAD)]
)
def test_requests_that_are_too_large_are_refused_unread(server: Server, route: str, size: int) -> None:
    with socket.create_connection(server.address.removeprefix("http://").split(":"), timeout=HANGS) as connection:
        connection.sendall(
            f"POST /gradio_api/{route} HTTP/1.1\r\nHost: a\r\nContent-Length: {2 * size}\r\n\r\n".encode()
        )
        assert b" 413 " in connection.recv(100)


def test_routes_that_promise_json_refuse_what_is_too_large_in_json(server: Server) -> None:
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=HANGS)
    connection.putrequest("POST", "/find_images")
    connection.putheader("Content-Length", str(MAX_REQUEST + 1))
    connection.endheaders()  # it is not read
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert answer.status == 413
        assert json.load(answer) == {"error": f"More than {MAX_REQUEST:,} bytes are not taken."}


@pytest.mark.parametrize("path", ["call/nothing", "call/v2/nothing", "run/nothing", "call/nothing/1"])
def test_a_function_that_is_none_is_not_found(server: Server, path: str) -> None:
    before = server.log.read_text().count("Traceback")
    code, content = status(server, f"/gradio_api/{path}", "POST", b'{"data": ["a dog"]}')
    assert code == 404
    assert content.startswith(b"There is no function 'nothing'; there are find_images, find_similar,")
    assert server.log.read_text().count("Traceback") == before


@pytest.mark.parametrize("path", ["/gradio_api/call/find_images", "/gradio_api/upload"])
def test_requests_of_unknown_length_end_at_the_limit(server: Server, path: str) -> None:
    """A body in pieces has no declared length."""
    before, piece = memory(server, "VmRSS"), b"100000\r\n" + b" " * 2**20 + b"\r\n"
    header = (
        "Content-Type: multipart/form-data; boundary=a" if path.endswith("upload") else "Content-Type: application/json"
    )
    with socket.create_connection(server.address.removeprefix("http://").split(":"), timeout=HANGS) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n{header}\r\n\r\n".encode()
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100)[9:12] in (b"", b"400", b"413")
    assert memory(server, "VmRSS") - before < 150 * 2**20


def test_a_full_queue_says_so_and_empties(server: Server, client: Client, place: Path) -> None:
    body = json.dumps({"data": [WAIT, "given"]}).encode()
    for _ in range(200):  # 2 are worked on, 100 wait
        code, content = status(server, "/gradio_api/call/find_images", "POST", body)
        if code != 200:
            break
    assert code == 503
    assert b"Queue is full. Max size is 100" in content
    (place / "go").touch()
    wait_until(lambda: json.loads(status(server, "/gradio_api/queue/status")[1])["queue_size"] == 0)
    assert len(client.predict("a dog", "given", api_name="/find_images")) == 5


def test_uploads_and_answers_are_deleted_and_the_page_is_not(place: Path, tmp_path: Path) -> None:
    paint(33).save(tmp_path / "mine.png")
    settings = {"VSE_DEMO_CACHE": str(place / "cache"), "GRADIO_TEMP_DIR": str(tmp_path / "uploads")}
    settings |= {"GO": str(tmp_path / "go"), "FORGETS": "1"}
    arguments = "--data", place / "mine", "--model", place / "model"
    with serve(tmp_path / "log", *arguments, program=place / "patient.py", **settings) as server:
        client = Client(server.address, verbose=False)
        client.predict("a dog", "given", api_name="/find_images")
        shown = set((tmp_path / "uploads").rglob("*.*"))  # what belongs to the page itself
        client.predict(handle_file(tmp_path / "mine.png"), "given", api_name="/find_captions")
        [upload] = (tmp_path / "uploads").rglob("mine.png")
        (tmp_path / "go").touch()
        wait_until(lambda: set((tmp_path / "uploads").rglob("*.*")) == shown)
        file = {"path": str(upload), "meta": {"_type": "gradio.FileData"}}
        answer = ask(server, "find_captions", [file, "given"])
        assert "event: error" in answer
        assert str(tmp_path) not in answer
        client.close()


# Starting it


def test_a_taken_port_is_named(start_python: Callable[..., subprocess.Popen[str]]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start_python(ROOT / "app.py", "--port", port)
        errors = process.communicate(timeout=HANGS)[1]
        assert not is_free(port)
    assert process.returncode == 1
    assert errors == f"app.py: port {port} cannot be used: choose another one with --port\n"
    assert is_free(port)
    assert not is_free(99999)


def test_ctrl_c_ends_it(place: Path) -> None:
    with serve(place / "log 2", "--data", place / "mine", "--model", place / "model") as server:
        ask(server, "find_images", ["a dog", "given"])  # by then its main thread waits for nothing but this
        os.kill(server.pid, signal.SIGINT)
        assert os.waitpid(server.pid, 0)[1] in (0, signal.SIGINT)
    assert "Traceback" not in server.log.read_text()
