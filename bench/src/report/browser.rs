//! The page in a real browser: headless Chromium, over the pipe of its DevTools protocol.
//!
//! `GUIDEWAY_SCREENSHOTS=DIR` leaves what it looked like there, and `GUIDEWAY_PAGE=FILE` has it look at a page of a real run,
//! too: `make report` does.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{drawings, render};
use crate::result::{Files, tests::sample_of_loads};

/// Names a page besides those that the test makes.
const OF_PAGE: &str = "GUIDEWAY_PAGE";
/// The names of the program, the smallest package first.
const PROGRAMS: [&str; 2] = ["chromium-headless-shell", "chromium"];
/// How long the browser may take for one answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes of a page, for each result.
const MOST_BYTES: usize = 2_000_000;

/// A browser with one tab.
struct Browser {
    program: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    number: u64,
    events: Vec<Value>,
}

impl Browser {
    /// Starts it with a profile of its own; `None` where there is no Chromium, which CI must have, and whoever names a page.
    fn start(profile: &Path) -> Option<Self> {
        let search = env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &&&str| env::split_paths(&search).any(|at| at.join(name).exists());
        let Some(name) = PROGRAMS.iter().find(is_there) else {
            let is_needed = ["GUIDEWAY_CI", OF_PAGE].map(|name| env::var_os(name).is_some());
            let is_needed = is_needed.contains(&true);
            assert!(
                !is_needed,
                "there is no Chromium: run `deploy/setup.sh test`"
            );
            eprintln!("there is no Chromium: no browser looks at the page");
            return None;
        };
        // It reads commands from descriptor 3 and writes to 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", *name]);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args([
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut program = command.spawn().expect("there is a shell");
        let commands = program.stdin.take().expect("it is a pipe");
        let mut answers = BufReader::new(program.stdout.take().expect("it is a pipe"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while answers
                .read_until(0, &mut message)
                .is_ok_and(|length| length > 0)
            {
                message.pop();
                let value = serde_json::from_slice(&message).expect("it speaks JSON");
                message.clear();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            program,
            commands,
            messages,
            session: String::new(),
            number: 0,
            events: Vec::new(),
        };
        browser.open_tab();
        Some(browser)
    }

    fn open_tab(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach);
        self.session = attached["sessionId"]
            .as_str()
            .expect("a tab has a session")
            .to_owned();
        for domain in ["Page", "Network", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Calls a method and returns its result. Events that come before it are kept.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": parameters});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        let command = format!("{command}\0");
        self.commands
            .write_all(command.as_bytes())
            .expect("the browser runs");
        loop {
            let message = self.next_message();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn next_message(&mut self) -> Value {
        let message = self.messages.recv_timeout(PATIENCE);
        message
            .unwrap_or_else(|error| panic!("{error}; the browser: {:?}", self.program.try_wait()))
    }

    /// Shows a file as on a screen or on paper, and returns what happened meanwhile.
    fn show(&mut self, file: &Path, look: Look) -> Vec<Value> {
        let metrics = json!({"width": look.width, "height": 900, "deviceScaleFactor": 1, "mobile": look.width < 500});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = json!([{"name": "prefers-color-scheme", "value": look.scheme}]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"media": look.media, "features": scheme}),
        );
        self.events.clear();
        let url = format!("file://{}", file.display());
        self.call("Page.navigate", json!({"url": url}));
        while !self
            .events
            .iter()
            .any(|event| event["method"] == "Page.loadEventFired")
        {
            let message = self.next_message();
            self.events.push(message);
        }
        std::mem::take(&mut self.events)
    }

    fn evaluate(&mut self, script: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({"expression": script, "returnByValue": true}),
        );
        answer["result"]["value"].clone()
    }

    fn keep_screenshot(&mut self, directory: &Path, name: &str) {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip =
            json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let shot = json!({"captureBeyondViewport": true, "clip": clip});
        let shot = self.call("Page.captureScreenshot", shot);
        let image = BASE64_STANDARD
            .decode(shot["data"].as_str().unwrap())
            .unwrap();
        fs::write(directory.join(format!("{name}.png")), image).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
struct Look {
    width: u32,
    media: &'static str,
    scheme: &'static str,
}

const LOOKS: [Look; 6] = [
    Look {
        width: 1280,
        media: "screen",
        scheme: "light",
    },
    Look {
        width: 1280,
        media: "screen",
        scheme: "dark",
    },
    Look {
        width: 390,
        media: "screen",
        scheme: "light",
    },
    Look {
        width: 390,
        media: "screen",
        scheme: "dark",
    },
    // A4 less the margins, at 96 dots an inch.
    Look {
        width: 718,
        media: "print",
        scheme: "light",
    },
    Look {
        width: 718,
        media: "print",
        scheme: "dark",
    },
];

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("guideway-bench-{}-browser", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns what a page did that it must not: what it said on the console, and what it asked for besides itself.
fn offences(events: &[Value], file: &Path) -> Vec<String> {
    let own = format!("file://{}", file.display());
    let offends = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
        "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => true,
        "Network.requestWillBeSent" => event["params"]["request"]["url"] != own,
        _ => false,
    };
    events
        .iter()
        .filter(offends)
        .map(Value::to_string)
        .collect()
}

fn check(browser: &mut Browser, scratch: &Path, name: &str, results: &[Files]) {
    let file = scratch.join(format!("{name}.html"));
    fs::write(&file, render(results)).unwrap();
    check_page(browser, name, &file, MOST_BYTES * results.len());
}

/// Says which elements are beyond the right edge: the innermost ones, where nothing around them is scrolled by itself.
const BEYOND_THE_EDGE: &str = "[...document.querySelectorAll('body *')]
    .filter(one => getComputedStyle(one.closest('.scroll, pre, figure') ?? one).overflowX !== 'auto')
    .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth)
    .filter((one, _, all) => !all.some(other => other !== one && one.contains(other)))
    .slice(0, 8)
    .map(one => `${one.parentElement.tagName} > ${one.tagName}: ${one.textContent.slice(0, 80)}`)
    .join('; ')";

/// Looks at a page in every way.
fn check_page(browser: &mut Browser, name: &str, file: &Path, most: usize) {
    let length = fs::metadata(file).unwrap().len();
    assert!(length <= most as u64, "{name}: {length} bytes");
    for look in LOOKS {
        let events = browser.show(file, look);
        let offences = offences(&events, file);
        assert!(offences.is_empty(), "{name}, {look:?}: {offences:?}");
        let wide = browser.evaluate("document.documentElement.scrollWidth");
        assert_eq!(
            wide,
            look.width,
            "{name}, {look:?}: it must not be scrolled sideways, as by {}",
            browser.evaluate(BEYOND_THE_EDGE)
        );
        let headings = browser.evaluate("document.querySelectorAll('h2').length");
        assert!(
            headings.as_u64().is_some_and(|number| number > 8),
            "{name}: {headings}"
        );
        // The ground follows the reader's choice, and paper is white.
        let ground = browser.evaluate("getComputedStyle(document.body).backgroundColor");
        let dark = look.media == "screen" && look.scheme == "dark";
        assert_eq!(
            ground == "rgb(13, 17, 23)",
            dark,
            "{name}, {look:?}: {ground}"
        );
        if let Some(directory) = env::var_os("GUIDEWAY_SCREENSHOTS") {
            let Look {
                width,
                media,
                scheme,
            } = look;
            browser.keep_screenshot(
                Path::new(&directory),
                &format!("{name}-{width}-{media}-{scheme}"),
            );
        }
    }
}

#[test]
fn the_page_is_quiet_and_fits_screens_phones_and_paper() {
    let scratch = Scratch::new();
    let Some(mut browser) = Browser::start(&scratch.0.join("profile")) else {
        return;
    };
    let one = sample_of_loads(1);
    check(&mut browser, &scratch.0, "one", std::slice::from_ref(&one));
    let Files {
        mut run, series, ..
    } = sample_of_loads(2);
    let much = "another, of which much is to be said ".repeat(8);
    run.environment.insert("cpu.model".to_owned(), much);
    let other = Files::make(run, 1_795_219_200.0, series).unwrap();
    check(&mut browser, &scratch.0, "two", &[one.clone(), other]);
    if let Some(page) = env::var_os(OF_PAGE) {
        let page = fs::canonicalize(page).unwrap();
        check_page(&mut browser, "page", &page, MOST_BYTES);
    }

    let names = [
        "percentiles",
        "load-p50",
        "load-p99",
        "time-p50",
        "time-max",
        "shares",
    ];
    let drawings = drawings(&[one]);
    assert!(
        drawings
            .iter()
            .map(|(name, _)| name.as_str())
            .eq(names.map(|name| format!("{name}.svg")))
    );
    for (name, drawing) in drawings {
        let file = scratch.0.join(&name);
        fs::write(&file, drawing).unwrap();
        let events = browser.show(&file, LOOKS[0]);
        assert!(offences(&events, &file).is_empty(), "{name}: {events:?}");
        let marks = browser
            .evaluate("document.querySelectorAll('svg > text, svg > polyline, svg > rect').length");
        assert!(
            marks.as_u64().is_some_and(|number| number > 10),
            "{name}: {marks}"
        );
        let errors = browser.evaluate("document.querySelectorAll('parsererror').length");
        assert_eq!(errors, 0, "{name}");
    }
}
