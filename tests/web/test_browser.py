"""The pages in a real browser: pictures are painted, keys and pointers work, nothing is loaded."""

import re
from collections.abc import Iterator
from http import HTTPStatus

import numpy as np
import pytest
import zarr
from playwright.sync_api import Browser, Page, Response, Route, ViewportSize, expect

import icefloe
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium, serious_problems
from tests.support.http_server import ScriptedHandler, scripted_server
from tests.web.conftest import served

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGES = [
    "/",
    "/?search=a",
    "/node/t2m",
    "/node/image",
    "/node/line",
    "/node/names",
    "/node/ocean",
    "/history",
    "/versions",
    "/commit?version=v1",
    "/diff",
    "/diff?from=v1&to=main",
    "/diff/t2m?from=v1&to=main",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page that fails the test for every message of the console and every foreign request."""
    viewport: ViewportSize = {"width": 1100, "height": 900}
    context = browser.new_context(base_url=address, viewport=viewport, locale="en-US")
    page = context.new_page()
    problems: list[str] = []
    page.on(
        "console",
        lambda m: problems.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith((address, "data:")) else problems.append(r.url),
    )
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    yield page
    context.close()
    assert problems == []


def open_picture(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator(".picture")).to_have_attribute("data-ready", "true", timeout=60_000)


def colours(page: Page) -> int:
    """Return how many different colours the canvas of the picture has."""
    return int(
        page.evaluate(
            """() => {
                const canvas = document.querySelector('.canvas canvas');
                const { width, height } = canvas;
                const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
                return new Set(new Uint32Array(data.buffer)).size;
            }"""
        )
    )


def corner_colours(page: Page) -> list[list[int]]:
    """Return the colours in the south-west and the north-east of a map of 19 by 36 values."""
    found: list[list[int]] = page.evaluate(
        """() => {
            const canvas = document.querySelector('.canvas canvas');
            const ratio = devicePixelRatio;
            const width = canvas.width / ratio - 160, height = canvas.height / ratio - 45;
            const [dx, dy] = [width / 72, height / 38];
            const context = canvas.getContext('2d');
            const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
            return [[70 + dx, 10 + height - dy], [70 + width - dx, 10 + dy]].map(([x, y]) => {
                const pixel = 4 * (Math.floor(y * ratio) * canvas.width + Math.floor(x * ratio));
                return [...data.slice(pixel, pixel + 3)];
            });
        }"""
    )
    return found


def test_a_map_is_painted_and_answers_the_pointer(page: Page) -> None:
    open_picture(page, "/node/t2m")
    assert colours(page) > 50
    status = page.locator(".picture .status")
    expect(status).to_contain_text("K")
    page.locator(".canvas canvas").hover(position={"x": 300, "y": 100})
    expect(status).to_contain_text("at lat")
    expect(status).to_contain_text("lon")


@pytest.mark.parametrize("width", [1100, 390])
def test_the_pointer_is_where_it_is_drawn(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_picture(page, "/node/t2m")
    canvas = page.locator(".canvas canvas")
    box = canvas.bounding_box()
    assert box is not None
    row, column = (box["height"] - 45) / 19, (box["width"] - 160) / 36
    for lat, lon in ((-90, 0), (-80, 350), (90, 180)):
        x, y = 70 + (lon / 10 + 0.5) * column, 10 + (9.5 - lat / 10) * row
        canvas.hover(position={"x": x, "y": y})
        expect(page.locator(".picture .status")).to_contain_text(f"at lat {lat}, lon {lon}")


def test_a_slider_shows_another_step(page: Page) -> None:
    open_picture(page, "/node/t2m")
    before = page.locator(".picture .status").inner_text()
    page.locator("input[type=range]").fill("7")
    expect(page.locator("output")).to_have_text("2024-01-08")
    expect(page.locator(".picture .status")).not_to_have_text(before)


def test_a_click_shows_the_series_at_a_point(page: Page) -> None:
    open_picture(page, "/node/t2m")
    page.locator(".canvas canvas").click(position={"x": 300, "y": 100})
    expect(page.locator(".series")).to_have_attribute("data-ready", "true", timeout=60_000)
    expect(page.locator(".series canvas")).to_be_visible()
    expect(page.locator(".series figcaption")).to_contain_text("Along time")


def test_the_keyboard_moves_the_pointer(page: Page) -> None:
    open_picture(page, "/node/t2m")
    page.locator(".canvas").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".picture .status")).to_contain_text("at lat 10")
    page.keyboard.press("Enter")
    expect(page.locator(".series")).to_be_visible()


def test_a_page_with_a_picture_of_noise_is_light_and_exact(browser: Browser) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    noise = np.random.default_rng(0).normal(size=(1024, 1024))
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="noise", data=noise)
    with served(Viewed(repository, "x", "x")) as root:
        page = browser.new_page(base_url=root)
        responses: list[Response] = []
        page.on("response", lambda response: responses.append(response))  # noqa: PLW0108
        open_picture(page, "/node/noise")
        page.wait_for_load_state("networkidle")
        sizes = [response.request.sizes() for response in responses]
        assert sum(s["responseBodySize"] + s["responseHeadersSize"] for s in sizes) < 400_000
        page.locator(".canvas").focus()
        page.keyboard.press("ArrowUp")
        row, column = 2 * 255, 2 * 256  # every second value is drawn
        text = f"{float(f'{np.float32(noise[row, column]):.6g}'):g} at dim_0 {row}, dim_1 {column}"
        expect(page.locator(".picture .status")).to_have_text(text)
        page.get_by_text("Values as a table").click()
        first = page.locator(".values tbody td").first
        expect(first).to_have_text(f"{float(f'{np.float32(noise[0, 0]):.6g}'):g}")
        page.close()


def test_values_are_also_a_table(page: Page) -> None:
    open_picture(page, "/node/image")
    page.get_by_text("Values as a table").click()
    expect(page.locator(".values tbody tr")).to_have_count(24)
    expect(page.locator(".values tbody td").first).to_have_text("0")


def test_lines_chunks_and_statistics(page: Page) -> None:
    open_picture(page, "/node/line")
    expect(page.locator(".canvas .uplot canvas")).to_be_visible()
    page.locator("#chunks").scroll_into_view_if_needed()
    expect(page.locator("canvas[data-grid]")).to_be_visible()
    expect(page.get_by_text("Exact")).to_be_visible()


def test_a_difference_is_painted_around_zero(page: Page) -> None:
    open_picture(page, "/diff/t2m?from=v1&to=main")
    status = page.locator(".picture .status")
    expect(status).to_contain_text("4 changed chunks in this plane.")
    # The values are 5 now and were 0 in one corner, which is nearly white, and 683 in the other.
    small, large = corner_colours(page)
    assert min(small) > 200
    assert large[0] < 60 < large[2]  # dark blue
    page.locator("input[type=range]").fill("7")
    expect(status).to_contain_text("No chunk of this plane changed.")
    expect(page.locator("canvas[data-grid]")).to_be_visible()


def test_chunks_that_changed_are_marked(page: Page) -> None:
    page.goto("/node/t2m")
    page.get_by_label("Changed since").fill("v1")
    page.get_by_role("button", name="Mark").click()
    page.locator("#chunks").scroll_into_view_if_needed()
    expect(page.locator("#chunks .changed")).to_have_text("4 changed")
    page.get_by_role("link", name="All differences of this array").click()
    expect(page.locator("h1")).to_have_text("Difference of t2m")


def test_the_picker_opens_another_version(page: Page) -> None:
    page.goto("/diff?from=v1&to=main")
    page.get_by_label("Version").select_option("v1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("footer")).to_contain_text("tag v1")
    expect(page.locator("h1")).to_have_text("Difference of two versions")
    page.get_by_role("link", name="All versions").click()
    page.get_by_label("Search").fill("MAI")
    page.get_by_role("button", name="Search").click()
    page.locator("table").get_by_role("link", name="main").click()
    expect(page.locator("footer")).to_contain_text("branch main")
    assert page.url.endswith("/diff?from=v1&to=main&version=main")


def test_a_moment_is_a_date_that_is_picked(page: Page, repository: icefloe.Repository) -> None:
    page.goto("/node/t2m")
    page.get_by_role("link", name="All versions").click()
    page.get_by_label("Moment").fill("2999-01-31T12:00:00")
    page.locator("main").get_by_role("button", name="Show").click()
    expect(page.locator("h1")).to_contain_text("t2m")
    expect(page.locator("footer")).to_contain_text(repository.lookup_branch("main"))
    expect(page.locator("#version")).to_have_value("main@2999-01-31T12:00")


def test_keys_move_along_a_line(page: Page) -> None:
    open_picture(page, "/node/line")
    status = page.locator(".picture .status")
    expect(status).to_contain_text(re.compile(r"^-[0-9.]+ to 0\.[0-9]+\.$"))
    page.locator(".canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(status).to_have_text(f"{np.sin(np.float64(2) / 5):.6g} at time 2024-01-03")
    expect(page.locator(".u-legend")).to_contain_text("2024-01-03")
    page.keyboard.press("End")
    expect(status).to_contain_text("at time 2024-01-20")
    page.locator("details.values summary").click()
    rows = page.locator("details.values tbody tr")
    expect(rows).to_have_count(20)
    expect(rows.last).to_contain_text("2024-01-20")


IS_CUT = """() => {
    const canvas = document.querySelector('.uplot canvas');
    const { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
    const rows = Array.from({ length: height }, (_, y) => y);
    return [0, width - 1].some((x) => rows.some((y) => data[4 * (y * width + x) + 3]));
}"""


@pytest.mark.parametrize("width", [1100, 390])
def test_labels_of_a_line_are_not_cut(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in ("/node/line", "/node/high"):
        open_picture(page, path)
        assert not page.evaluate(IS_CUT), path


def test_a_browser_whose_language_nobody_knows(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address)
    context.add_init_script(
        "Object.defineProperty(navigator, 'language', { value: 'C@posix', configurable: true })"
    )
    page = context.new_page()
    open_picture(page, "/node/line")
    expect(page.locator(".canvas .uplot canvas")).to_be_visible()
    context.close()


def test_a_part_of_a_large_array_is_chosen(browser: Browser) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with repository.transaction("main", message="data") as store:
        large = zarr.create_array(
            store, name="large", shape=(100_000, 100_000), chunks=(1000, 1000), dtype="u1"
        )
        large[:1000, -1000:] = 7
    with served(Viewed(repository, "x", "x")) as root:
        page = browser.new_page(base_url=root, locale="en-US")
        open_picture(page, "/node/large")
        status = page.locator(".picture .status")
        expect(status).to_have_text("0 to 0. A part of the array: 49 of 10,000 chunks.")
        down, right = (page.get_by_label(f"Part around dim_{axis}") for axis in (0, 1))
        expect(down).to_have_value("50000")
        down.fill("0")
        expect(down.locator("+ output")).to_have_text("0")
        right.focus()
        page.keyboard.press("End")
        expect(status).to_contain_text("0 to 7.")
        page.close()


def test_what_takes_longer_says_so(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, locale="en-US")
    page = context.new_page()
    open_picture(page, "/node/t2m")
    held: list[Route] = []
    slow = re.compile("/picture/|/fragment/")
    context.route(slow, lambda route: held.append(route))  # noqa: PLW0108

    def release() -> None:
        for route in held:
            route.continue_()
        held.clear()

    status = page.locator(".picture .status")
    page.locator("input[type=range]").fill("3")
    expect(status).to_have_text("Reading …")
    release()
    expect(status).to_contain_text("K")
    page.goto("/node/line")
    chunks = page.locator("#chunks")
    chunks.scroll_into_view_if_needed()
    target = chunks.locator(".target")
    expect(target.get_by_text("Count")).to_be_hidden()
    content = "(element) => getComputedStyle(element, '::after').content"
    assert target.evaluate(content) == '"Reading …"'
    release()
    expect(chunks.locator("canvas[data-grid]")).to_be_visible()
    assert target.evaluate(content) == "none"
    context.close()


def test_a_failure_to_paint_is_told(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, locale="en-US")
    context.route("**/vendor/uplot.min.js", lambda route: route.abort())
    page = context.new_page()
    page.goto("/node/line")
    expect(page.locator(".picture .status")).to_contain_text("could not be painted: uPlot")
    context.close()


def test_a_slider_says_its_date(page: Page) -> None:
    page.goto("/node/t2m")
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuetext", "2024-01-01")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "2024-01-02")


def test_a_range_is_kept_and_entered(page: Page) -> None:
    open_picture(page, "/node/t2m?version=v1")
    low, high = page.get_by_label("Lowest value"), page.get_by_label("Highest value")
    automatic = low.input_value(), high.input_value()
    page.get_by_label("Range").select_option("kept")
    page.locator("input[type=range]").fill("9")
    expect(page.locator("output")).to_have_text("2024-01-10")
    expect(page.locator(".picture .status")).to_contain_text("6156 to 6839")
    assert (low.input_value(), high.input_value()) == automatic
    before = colours(page)
    high.fill("7000")
    high.press("Enter")
    expect(page.get_by_label("Range")).to_have_value("kept")
    assert low.input_value() == automatic[0]
    low.fill("6100")
    low.press("Enter")
    assert colours(page) > before  # which was the last colour everywhere
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_label("Range")).to_have_value("robust")
    assert float(low.input_value()) > 6100


def test_a_series_along_the_dimension_that_is_chosen(page: Page) -> None:
    open_picture(page, "/node/deep")
    page.locator(".canvas").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_label("Series along").select_option("level")
    page.locator(".canvas").focus()
    page.keyboard.press("Enter")
    series = page.locator(".series")
    expect(series).to_have_attribute("data-ready", "true")
    expect(series.locator("figcaption")).to_contain_text("Along level at run 0, lat 10")
    series.locator("summary").click()
    expect(series.locator("details tbody th")).to_have_text(["1000", "500", "250"])
    values = [float(text) for text in series.locator("details tbody td").all_inner_texts()]
    assert np.diff(values).tolist() == [19 * 36] * 2
    page.get_by_label("Series along").select_option("lon")
    expect(series.locator("details tbody tr")).to_have_count(36)
    series.locator(".plot").focus()
    page.keyboard.press("Home")
    expect(series.locator("figcaption")).to_contain_text("at lon 0")


def test_the_grid_of_chunks_is_a_table(page: Page) -> None:
    page.goto("/node/ocean/sparse?since=v1")
    page.locator("#chunks").scroll_into_view_if_needed()
    page.locator("#chunks details summary").click()
    rows = page.locator("#chunks tbody tr")
    texts = [" ".join(row.split()) for row in rows.all_inner_texts()]
    assert texts == [
        f"{texts[0].split()[0]} 2 0 to 9 10",
        "missing 0 to 1 0 to 9 20",
        "missing 3 to 9 0 to 9 70",
    ]


def test_opened_parts_and_problems_are_accessible(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, locale="en-US")
    page = context.new_page()
    for path in ("/node/deep", "/node/nope", "/?version=nope", "/nothing/here"):
        page.goto(path)
        page.wait_for_load_state("networkidle")
        if path == "/node/deep":
            page.locator(".canvas canvas").click(position={"x": 300, "y": 100})
            expect(page.locator(".series")).to_have_attribute("data-ready", "true")
            page.locator("#chunks").scroll_into_view_if_needed()
            expect(page.locator("canvas[data-grid]")).to_be_visible()
            for summary in page.locator("details summary").all():
                summary.click()
            expect(page.locator(".series details tbody tr")).to_have_count(2)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert serious_problems(page) == [], path
        page.set_viewport_size({"width": 390, "height": 800})
        page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
        page.set_viewport_size({"width": 1100, "height": 900})
    context.close()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(page: Page, path: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(path)
    page.wait_for_load_state("networkidle")
    assert serious_problems(page) == []


def test_pages_fit_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    for path in PAGES:
        page.goto(path)
        page.wait_for_load_state("networkidle")
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 390, path


def test_text_is_readable_without_scripts(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("link", name="t2m")).to_be_visible()
    page.goto("/node/t2m")
    expect(page.get_by_text("20 steps, 4 chunks")).to_be_visible()
    form = page.locator("form.download")
    form.get_by_label("lat", exact=True).fill("0 / 10")
    form.get_by_label("lon", exact=True).fill("-10")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "time,lat,lon,t2m"
    assert len(lines) == 1 + 20 * 2
    assert lines[1] == "2024-01-01T00:00:00,0,350,5"
    page.goto("/history")
    page.get_by_label("Compare from").nth(1).check()
    page.get_by_role("button", name="Compare the chosen commits").click()
    page.get_by_role("link", name="/t2m").click()
    expect(page.locator(".regions tbody")).to_contain_text("2024-01-01 to 2024-01-05")
    context.close()


FETCH = """async (url) => {
    try {
        const response = await fetch(url, { headers: { Range: "bytes=-7" } });
        return [response.status, response.headers.get("content-range"), await response.text()];
    } catch (error) { return error.name; }
}"""


def test_only_a_named_site_reads_data(browser: Browser, viewed: Viewed) -> None:
    def answer(request: ScriptedHandler) -> None:
        request.answer(HTTPStatus.OK, b"<!doctype html><p>A site", {"Content-Type": "text/html"})

    with scripted_server(answer) as site, served(viewed, [site.url]) as root:
        page = browser.new_page()
        page.goto(site.url)
        status, part, text = page.evaluate(FETCH, f"{root}/zarr/cube@v1/t2m/zarr.json")
        assert (status, len(text)) == (206, 7)
        assert part.startswith("bytes ")
        assert page.evaluate(FETCH, f"{root}/history") == "TypeError"
        page.goto(site.url.replace("127.0.0.1", "localhost"))
        assert page.evaluate(FETCH, f"{root}/zarr/cube@v1/t2m/zarr.json") == "TypeError"
        page.close()
