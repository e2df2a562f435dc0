"""A headless Chromium, spoken to by its own protocol over a pipe: no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Browser", "Tab", "chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Where the browser is; ``None`` where there is none (`GODWIT_CHROMIUM` names another)."""
    named = os.environ.get("GODWIT_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser process with a profile of its own, where a tab that fails leaves a picture."""

    def __init__(self, command: str, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def wire() -> None:  # the protocol is on descriptors 3 and 4
            ends = os.dup(commands), os.dup(answers)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [
                *(command, "--headless=new", "--remote-debugging-pipe", "--no-sandbox"),
                *("--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--disable-sync", "--mute-audio"),
                *(f"--user-data-dir={profile}", "about:blank"),
            ],
            preexec_fn=wire,  # noqa: PLW1509  it only moves descriptors
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._pending = b""
        self._pictures = profile
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            more = os.read(self._read, 2**16)
            assert more, "the browser has ended"
            self._pending += more
        whole, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(whole)
        return message

    @contextmanager
    def tab(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> Iterator[Tab]:
        """A page that is opened, and closed again."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        tab.call("Runtime.enable")
        tab.call("Log.enable")
        tab.call("Page.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        tab.call("Emulation.setEmulatedMedia", features=scheme)
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        tab.call("Page.navigate", url=url)
        try:
            yield tab
        except BaseException:
            tab.picture(self._pictures / f"{target}.png")
            raise
        finally:
            self.call("Target.closeTarget", targetId=target)


class Tab:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol on this page."""
        return self._browser.call(method, self._session, **params)

    def run(self, expression: str) -> Any:
        """Evaluate an expression of JavaScript; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Text of an element, as it is shown."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def wait_for(self, expression: str, timeout_s: float = 120.0) -> None:
        """Wait until an expression is true."""
        until_s = time.monotonic() + timeout_s
        safe = f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        while not self.run(safe):
            assert time.monotonic() < until_s, f"never: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
            )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the page threw, or the browser refused it."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        self.run("0")
        mine = [e for e in self._browser.events if e.get("sessionId") == self._session]
        return [json.dumps(e["params"])[:500] for e in mine if e.get("method") in kinds]
