//! Opens a page of `evenkeel report` from its file in Chromium, through ChromeDriver (W3C WebDriver). A
//! click hides a variant, a narrow screen does not scroll sideways, no script fails, and the page loads
//! no other file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::{end, evenkeel};

const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one window. Dropping the value ends the browser.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser. Returns `None` if ChromeDriver is not installed. Panics instead if `CI` is set,
    /// except on Ubuntu.
    fn start() -> Option<Self> {
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = match started {
            Ok(driver) => driver,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Ubuntu has Chromium only as a snap, which ./dev setup does not install.
                let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
                let is_ubuntu = release.lines().any(|line| line == "ID=ubuntu");
                assert!(
                    is_ubuntu || std::env::var_os("CI").is_none(),
                    "chromedriver is not installed, and CI is set"
                );
                eprintln!("chromedriver is not installed: nothing was checked (./dev setup installs it)");
                return None;
            }
            Err(error) => panic!("chromedriver: {error}"),
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.strip_suffix('.')?.rsplit_once("started successfully on port ")?.1.parse().ok()
            })
            .expect("chromedriver names its port");
        // The driver must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--user-data-dir={}", browser._profile.path().to_str().unwrap()),
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.request("POST", "/session", &capabilities);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        Some(browser)
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(found) = line.strip_prefix("content-length:") {
                length = found.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text).unwrap();
        let response: Value = serde_json::from_slice(&text).unwrap();
        assert!(response["value"]["error"].is_null(), "{method} {path}: {response}");
        response["value"].clone()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", &format!("{}{path}", self.session), body)
    }

    fn script(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    fn click(&self, selector: &str) {
        let element = self.post("/element", &json!({"using": "css selector", "value": selector}));
        let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.post(&format!("/element/{id}/click"), &json!({}));
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    fn width(&self, width: u32) {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": true});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        self.post("/se/log", &json!({"type": kind})).as_array().unwrap().clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.session.is_empty() {
            self.request("DELETE", &self.session, &Value::Null);
        }
        // Ignore errors: the driver may have ended.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

#[test]
fn a_page_works_from_its_file() {
    let Some(browser) = Browser::start() else { return };
    let place = tempfile::tempdir().unwrap();
    let run = ["run", "titan-6-flows", "--on", "sim", "--quick", "--quiet", "--out", "record"];
    for arguments in [&run[..], &["report", "record"]] {
        let mut command = evenkeel(arguments);
        command.current_dir(place.path());
        let ended = end(command);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let page = format!("file://{}/report.html", place.path().to_str().unwrap());
    // Leave the browser's own first page, which loads files.
    browser.post("/url", &json!({"url": "about:blank"}));
    browser.log("performance");
    browser.post("/url", &json!({"url": page}));

    // A click hides the second variant. The reset button shows it again.
    let shown = |class: &str| {
        let script = format!(
            "return [...document.querySelectorAll('.{class}')].filter(one => one.getBoundingClientRect().width > 0).length"
        );
        browser.script(&script).as_u64().unwrap()
    };
    browser.script("document.querySelectorAll('details').forEach(one => one.open = true)");
    let (first, second) = (shown("v0"), shown("v1"));
    assert!(first > 10 && second > 10, "{first} {second}");
    browser.click("#f1");
    assert_eq!((shown("v0"), shown("v1")), (first, 0));
    // A copy contains only the visible rows. The page shows its buttons only if its script runs.
    let copied = browser.script("return csv(document.querySelector('table'))");
    let copied = copied.as_str().unwrap();
    assert!(copied.starts_with("variant,mean,") && copied.contains("\r\ncvanilla,"), "{copied}");
    assert!(!copied.contains("\r\ncmax,"), "{copied}");
    browser.click("button.copy");
    browser.click("button[type=reset]");
    assert_eq!((shown("v0"), shown("v1")), (first, second));

    for width in [360, 800, 1200] {
        browser.width(width);
        let widths = browser.script("return [document.documentElement.scrollWidth, innerWidth]");
        assert_eq!(widths[0], widths[1], "at {width}");
    }
    let complaints: Vec<Value> = browser.log("browser");
    assert!(complaints.is_empty(), "{complaints:?}");
    let requested: Vec<String> = browser
        .log("performance")
        .iter()
        .filter_map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            (message["method"] == "Network.requestWillBeSent")
                .then(|| message["params"]["request"]["url"].as_str().unwrap_or_default().to_owned())
        })
        .collect();
    let requested: Vec<&String> = requested.iter().filter(|url| !url.starts_with("chrome")).collect();
    assert_eq!(requested, [&page]);
}
