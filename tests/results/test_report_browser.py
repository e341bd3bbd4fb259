"""The report in a real browser: no console error, no request, charts drawn, filters work, 20,000 samples open fast.

Needs Chromium with its driver (Debian: chromium, chromium-driver) and selenium; without them these tests are skipped,
unless LONGEVAL_BROWSER_TESTS=required.
"""

import os
import shutil
import time
from dataclasses import replace
from importlib.util import find_spec

import pytest
from run_folders import build_run

from longeval.results.compare import compare
from longeval.results.published import load_published
from longeval.results.report import html_report

REQUIRED = os.environ.get("LONGEVAL_BROWSER_TESTS") == "required"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    needed = {"chromium": CHROMIUM, "chromedriver": DRIVER, "selenium": find_spec("selenium")}
    if missing := [name for name, found in needed.items() if not found]:
        (pytest.fail if REQUIRED else pytest.skip)(
            f"the report is not opened in a browser: no {', '.join(missing)} here"
        )
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three checkpoints, two suites, with losses by position."""
    folder = tmp_path_factory.mktemp("report")
    for name, skill in (("rope", 0.4), ("path-fox", 0.8)):
        build_run(folder / name, name, tasks=("niah_single_1", "niah_multiquery", "vt"), n=10, skill=skill)
    build_run(folder / "books", "books", "perplexity", tasks=["stdlib"], lengths=(128,), n=4)
    paths = [folder / name for name in ("rope", "path-fox", "books")]
    (folder / "report.html").write_text(html_report(compare(paths, published=[load_published("path-paper")])))
    return folder / "report.html"


def open_page(browser, path, width=1300, height=900, dark=False):
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(path.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")


def wait(browser, condition, seconds=60):
    end = time.monotonic() + seconds
    while not browser.execute_script(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def draw_all(browser):
    for chart in browser.find_elements("css selector", ".chart"):
        browser.execute_script("arguments[0].scrollIntoView()", chart)
        wait(browser, f"return document.getElementById('{chart.get_attribute('id')}').dataset.drawn === 'yes'")


def count(browser):
    return int(browser.find_element("id", "count").text.partition(" ")[0].replace(",", ""))


def choose(browser, name, value):
    browser.execute_script(
        "const field = document.querySelector(`[name=${arguments[0]}]`); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def assert_quiet(browser):
    """Nothing in the console, and nothing fetched but the page itself."""
    assert browser.get_log("browser") == []
    requests = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert len([message for message in requests if '"url":"http' in message]) == 0


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (420, True)])
def test_charts_are_drawn_without_a_word_or_a_request(browser, page, width, dark):
    open_page(browser, page, width, dark=dark)
    draw_all(browser)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('path, text').length)"
    )
    assert len(drawn) == 3 + 1 + 1 + 2 * 2 + 1  # tasks, a category, the average, heatmaps of two runs, losses
    assert min(drawn) > 10
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark
    assert_quiet(browser)


def test_the_theme_changes_by_hand(browser, page):
    open_page(browser, page)
    label = "return document.querySelector('.chart text').getAttribute('fill')"
    draw_all(browser)
    before = browser.execute_script(label)
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    wait(browser, f"{label} !== '{before}'")
    assert_quiet(browser)


def test_filters(browser, page):
    open_page(browser, page)
    assert count(browser) == 2 * 3 * 3 * 10 + 4
    choose(browser, "run", "1")
    assert count(browser) == 90
    choose(browser, "task", "0")
    choose(browser, "length", "2k")
    assert count(browser) == 10
    choose(browser, "outcome", "wrong")
    wrong = count(browser)
    choose(browser, "outcome", "right")
    assert 0 < wrong < 10
    assert count(browser) == 10 - wrong
    choose(browser, "outcome", "")
    choose(browser, "text", "niah_single_1/2048/0/7")
    assert count(browser) == 1
    browser.find_element("css selector", "#list summary").click()
    wait(browser, "return document.querySelector('#list dl') !== null")
    details = browser.find_element("css selector", "#list dl").text
    assert "What is the special magic number? </script> The" in details
    for name in ("prompt end", "prediction", "references", "score", "depths (%)"):
        assert name in details
    choose(browser, "text", "no such text")
    assert count(browser) == 0
    assert_quiet(browser)


def test_pages_of_samples(browser, page):
    open_page(browser, page)
    assert browser.execute_script("return document.querySelectorAll('#list details').length") == 50
    browser.find_element("id", "next").click()
    assert "page 2 of 4" in browser.find_element("id", "count").text
    browser.find_element("id", "previous").click()
    assert "page 1 of 4" in browser.find_element("id", "count").text
    assert not browser.find_element("id", "previous").is_enabled()


def test_20_000_samples_open_in_3_seconds(browser, tmp_path):
    tail = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 5
    build_run(
        tmp_path / "run",
        lengths=(4096, 8192, 16384, 32768),
        n=385,
        change=lambda row: replace(row, prompt_tail=tail[:400]),
    )
    path = tmp_path / "report.html"
    path.write_text(html_report(compare([tmp_path / "run"])))
    open_page(browser, path)
    assert count(browser) == 20_020
    milliseconds = browser.execute_script(
        "const [entry] = performance.getEntriesByType('navigation'); return entry.domContentLoadedEventEnd"
    )
    assert milliseconds < 3000
    assert_quiet(browser)
