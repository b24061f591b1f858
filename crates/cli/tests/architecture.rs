//! Tests the rules of `docs/contributors/architecture.md` that a program can check:
//!
//! - which crates a crate may depend on, and which modules may import one another;
//! - which parts of the standard library the pure crates must not use;
//! - how many lines a file may have, and that it has no marks of unfinished work;
//! - that paths are printed with `path_text`;
//! - that each `vm` test first checks that it runs in the virtual machine.
//!
//! Each rule is a function from text to violations. The tests at the end apply the rules to the repository, and to
//! inputs that violate them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates from the lowest to the highest layer, each with the workspace crates that it may depend
/// on. A crate may depend only on crates in previous rows. Add a new dependency here deliberately.
const ALLOWED: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("files", &["model"]),
    ("metrics", &["model"]),
    ("netlink", &["model"]),
    ("transmit", &["model"]),
    ("receive", &["model"]),
    ("placement", &["model"]),
    ("host", &["files", "model", "netlink"]),
    ("synthetic", &["model", "host"]),
    ("apply", &["files", "model", "netlink", "host"]),
    ("datapath", &["model", "transmit"]),
    ("control", &["netlink", "transmit", "host", "datapath"]),
    ("fair", &["files", "model", "metrics", "netlink", "transmit", "host", "apply", "datapath", "control"]),
    ("steer", &["netlink", "host", "receive", "apply", "datapath"]),
    ("congestion", &["model", "transmit", "host", "apply", "datapath"]),
    ("monitor", &["files", "model", "metrics", "netlink", "placement", "host", "apply", "datapath", "fair"]),
    ("service", &["model", "netlink", "host"]),
    ("testbed", &["model", "netlink", "transmit", "host", "datapath", "control"]),
    // `calibrate` measures between the namespaces of a test bed.
    ("calibrate", &["model", "metrics", "netlink", "host", "testbed"]),
    ("stations", &["model", "transmit"]),
    ("sim", &["model", "transmit", "receive", "stations"]),
    ("forecast", &["model", "metrics", "placement", "sim"]),
    ("report", &["files", "model", "metrics"]),
    ("experiment", &["model", "metrics", "report"]),
    ("study", &["files", "model", "metrics", "report", "experiment"]),
    (
        "cli",
        &[
            "files",
            "model",
            "metrics",
            "netlink",
            "host",
            "synthetic",
            "receive",
            "placement",
            "apply",
            "datapath",
            "fair",
            "steer",
            "congestion",
            "monitor",
            "service",
            "testbed",
            "calibrate",
            "report",
            "experiment",
            "study",
            "sim",
            "forecast",
        ],
    ),
];

/// Paths that a pure crate must not use if it needs the addresses in `std::net`, but opens no socket.
const NO_SOCKETS: &[&str] =
    &["std::fs", "std::process", "std::net::TcpStream", "std::net::TcpListener", "std::net::UdpSocket"];

/// Paths and keywords that the sources of each pure crate must not use.
const PURE: &[(&str, &[&str])] = &[
    // Changes of settings contain addresses.
    ("model", NO_SOCKETS),
    ("metrics", &["std::fs", "std::net", "std::process"]),
    ("transmit", &["std::fs", "std::net", "std::process"]),
    ("stations", &["std::fs", "std::net", "std::process", "std::time", "static mut"]),
    ("sim", &["std::fs", "std::net", "std::process", "std::time", "static mut"]),
    ("receive", NO_SOCKETS),
    ("forecast", &["std::fs", "std::net", "std::process"]),
    // The rules compute the queue of a connection from its addresses.
    ("placement", NO_SOCKETS),
    // This crate writes records to files named after the process id, but starts no process.
    ("report", &["std::net", "process::Command"]),
    // This crate writes its journal. It starts no process, and works with any `World`.
    ("study", &["std::net", "std::process"]),
    // This crate controls a world (the kernel or the simulator) through the trait `World`, and writes no
    // files.
    ("experiment", &["std::fs", "std::net", "std::process"]),
];

/// Marks of unfinished work. The strings are split so that this file does not contain the marks.
const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("unimplemented", "!"), concat!("todo", "!")];

/// Maximum length of a source file, lines.
const MAX_LINES: usize = 800;

/// The binary's `main.rs` must have fewer lines than this, because it contains only the wiring.
const MAX_MAIN_LINES: usize = 100;

// ---- Dependencies ----------------------------------------------------------------------------------

/// Returns the directory names of the workspace crates that a manifest depends on. Reads all tables of
/// dependencies, and includes renamed dependencies.
fn workspace_dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut found = Vec::new();
    collect_dependencies(manifest, &mut found);
    for target in
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values)
    {
        if let Some(tables) = target.as_table() {
            collect_dependencies(tables, &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

fn collect_dependencies(tables: &toml::Table, found: &mut Vec<String>) {
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (key, value) in tables.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            found.extend(directory_of(renamed.unwrap_or(key)));
        }
    }
}

/// Returns the directory of a package of this workspace. The binary's package is called `evenkeel`.
fn directory_of(package: &str) -> Option<String> {
    match package {
        "evenkeel" => Some("cli".to_owned()),
        _ => package.strip_prefix("evenkeel-").map(str::to_owned),
    }
}

/// Returns a message for each dependency of a crate that [`ALLOWED`] does not list. Also returns a message if
/// the table does not list the crate or the manifest is invalid.
fn dependency_violations(directory: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == directory) else {
        return vec![format!("crates/{directory} is not in the table of allowed dependencies")];
    };
    let manifest: toml::Table = match manifest.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("crates/{directory}/Cargo.toml: {error}")],
    };
    workspace_dependencies(&manifest)
        .iter()
        .filter(|dependency| !allowed.contains(&dependency.as_str()))
        .map(|dependency| format!("{directory} -> {dependency} is not an allowed dependency"))
        .collect()
}

// ---- Sources ---------------------------------------------------------------------------------------

/// Replaces each comment, string and character literal in Rust source by a blank, so that a search finds only
/// code. All line breaks remain.
fn code_only(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < text.len() {
        let end = skip_comment(&text, at)
            .or_else(|| skip_raw_string(&text, at))
            .or_else(|| skip_quoted(&text, at))
            .unwrap_or(at);
        if end > at {
            code.push(' ');
            code.extend(text[at..end].iter().filter(|&&character| character == '\n'));
            at = end;
        } else {
            code.push(text[at]);
            at += 1;
        }
    }
    code
}

/// Returns the end of the comment that begins at `at`; `None` if no comment begins there. Block
/// comments nest.
fn skip_comment(text: &[char], at: usize) -> Option<usize> {
    match (text.get(at)?, text.get(at + 1)?) {
        ('/', '/') => Some((at..text.len()).find(|&end| text[end] == '\n').unwrap_or(text.len())),
        ('/', '*') => {
            let (mut depth, mut end) = (1, at + 2);
            while depth > 0 && end + 1 < text.len() {
                match (text[end], text[end + 1]) {
                    ('/', '*') => (depth, end) = (depth + 1, end + 2),
                    ('*', '/') => (depth, end) = (depth - 1, end + 2),
                    _ => end += 1,
                }
            }
            Some(if depth == 0 { end } else { text.len() })
        }
        _ => None,
    }
}

/// Returns the end of the raw string (`r"…"`, `br#"…"#`) that begins at `at`; `None` if no raw string
/// begins there.
fn skip_raw_string(text: &[char], at: usize) -> Option<usize> {
    if at > 0 && is_identifier(text[at - 1]) && text[at - 1] != 'b' {
        return None;
    }
    if text[at] != 'r' {
        return None;
    }
    let quote = (at + 1..text.len()).find(|&index| text[index] != '#')?;
    if text[quote] != '"' {
        return None;
    }
    let hashes = quote - at - 1;
    let closes = |&end: &usize| {
        text[end] == '"' && text[end + 1..].iter().take(hashes).filter(|&&mark| mark == '#').count() == hashes
    };
    Some((quote + 1..text.len()).find(closes).map_or(text.len(), |end| end + 1 + hashes))
}

/// Returns the end of the string or character that begins at `at`; `None` if neither begins there. A
/// lifetime is neither a string nor a character.
fn skip_quoted(text: &[char], at: usize) -> Option<usize> {
    let quote = text[at];
    let is_character = quote == '\'' && (text.get(at + 1) == Some(&'\\') || text.get(at + 2) == Some(&'\''));
    if quote != '"' && !is_character {
        return None;
    }
    let mut end = at + 1;
    while end < text.len() && text[end] != quote {
        end += if text[end] == '\\' { 2 } else { 1 };
    }
    Some((end + 1).min(text.len()))
}

fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Splits code into identifiers and punctuation, with `::` as one token.
fn tokens(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut continues = false;
    for character in code.chars() {
        let part_of_word = is_identifier(character);
        match found.last_mut() {
            Some(last) if part_of_word && continues => last.push(character),
            Some(last) if character == ':' && last == ":" => last.push(':'),
            _ if character.is_whitespace() => {}
            _ => found.push(character.to_string()),
        }
        continues = part_of_word;
    }
    found
}

/// Returns whether code uses a keyword or a path. The path may be written in full, and its segments after the
/// first may be in groups such as `use std::{…}`. Code may import all segments but the last, and then use
/// the last two.
fn mentions(tokens: &[String], what: &str) -> bool {
    let segments: Vec<&str> = what.split("::").collect();
    let [.., parent, child] = segments[..] else {
        return tokens.iter().any(|token| token == what);
    };
    let is_at = |at: usize, path: &[&str]| tokens[at] == path[0] && continues(&tokens[at + 1..], &path[1..]);
    (0..tokens.len()).any(|at| is_at(at, &segments) || is_at(at, &[parent, child]) && segments.len() > 2)
}

/// Returns whether a path continues with these segments.
fn continues(tokens: &[String], segments: &[&str]) -> bool {
    let Some((first, rest)) = segments.split_first() else { return true };
    let [joint, tokens @ ..] = tokens else { return false };
    let begins = |item: &[String]| {
        let Some((head, tail)) = item.split_first() else { return false };
        // `use std::net::*` imports a type, which begins with a capital letter.
        let is_type = first.starts_with(|letter: char| letter.is_ascii_uppercase());
        head == first && continues(tail, rest) || head == "*" && is_type
    };
    joint == "::"
        && match tokens {
            [open, items @ ..] if open == "{" => group_items(items).any(begins),
            _ => begins(tokens),
        }
}

/// Returns the tokens from each item in a `use` group on. The tokens begin after the group's opening brace.
fn group_items(tokens: &[String]) -> impl Iterator<Item = &[String]> {
    let mut depth = 1_usize;
    let mut head_follows = true;
    (0..tokens.len())
        .map_while(move |at| {
            let is_head = depth == 1 && head_follows;
            head_follows = depth == 1 && tokens[at] == ",";
            match tokens[at].as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            (depth > 0).then_some((is_head, &tokens[at..]))
        })
        .filter_map(|(is_head, item)| is_head.then_some(item))
}

/// Returns a message for each path or keyword that a crate's source must not use, but does.
fn purity_violations(directory: &str, path: &str, source: &str) -> Vec<String> {
    let Some((_, forbidden)) = PURE.iter().find(|(name, _)| *name == directory) else { return Vec::new() };
    let tokens = tokens(&code_only(source));
    forbidden
        .iter()
        .filter(|what| mentions(&tokens, what))
        .map(|what| format!("{path}: `{what}` has no place in {directory}"))
        .collect()
}

fn length_violations(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    if path == "crates/cli/src/main.rs" && lines >= MAX_MAIN_LINES {
        return vec![format!("{path} has {lines} lines: main.rs stays below {MAX_MAIN_LINES}")];
    }
    if lines > MAX_LINES {
        return vec![format!("{path} has {lines} lines of at most {MAX_LINES}")];
    }
    Vec::new()
}

fn unfinished_violations(path: &str, text: &str) -> Vec<String> {
    let marks = |(line, number): (&str, usize)| {
        UNFINISHED
            .iter()
            .filter(|mark| line.contains(**mark))
            .map(|mark| format!("{path}:{number}: {mark}"))
            .collect::<Vec<_>>()
    };
    text.lines().zip(1..).flat_map(marks).collect()
}

/// Returns a message for each line that prints a path without `evenkeel_model::text::path_text`, which
/// escapes control characters.
fn raw_path_violations(path: &str, source: &str) -> Vec<String> {
    let is_exempt = path == "crates/model/src/text.rs" || path.ends_with("tests.rs");
    let code = code_only(source);
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().zip(1..).filter(|(line, _)| !is_exempt && line.contains(".display()"));
    lines.map(|(_, number)| format!("{path}:{number}: a path without path_text")).collect()
}

/// The module with the check of the `vm` tests, as their files include it.
const GUEST_MODULE: &str = "#[path = \"../../../scripts/vm/guest.rs\"]\nmod guest;\n";

/// Returns a message for a file of `vm` tests that does not include [`GUEST_MODULE`], and for each of its tests that
/// does something before the check.
fn guest_violations(path: &str, source: &str) -> Vec<String> {
    let mut violations = Vec::new();
    if !source.contains(GUEST_MODULE) {
        violations.push(format!("{path} does not include scripts/vm/guest.rs"));
    }
    let tokens = tokens(&code_only(source));
    let tests =
        (0..tokens.len()).filter(|&at| tokens[at..].starts_with(&["#", "[", "test", "]"].map(str::to_owned)));
    for test in tests {
        let body = tokens[test..].iter().skip_while(|token| *token != "{").skip(1);
        if !body.take(5).eq(["guest", "::", "require", "(", ")"]) {
            let name = tokens[test..].iter().skip_while(|token| *token != "fn").nth(1);
            let name = name.map_or("", String::as_str);
            violations.push(format!("{path}: {name} does not begin with guest::require()"));
        }
    }
    violations
}

// ---- The repository --------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace's root")
}

fn crate_directories() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("crates/")
        .map(|entry| entry.expect("an entry of crates/"))
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().expect("a crate's name"))
        .collect();
    names.sort();
    names
}

/// Returns the path from the root and the content of each text file below a directory with one of these extensions.
fn files(below: &str, extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from(below)];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(root().join(&directory)) else { continue };
        for entry in entries {
            let entry = entry.expect("a directory's entry");
            let path = directory.join(entry.file_name());
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if entry.path().is_dir() {
                if entry.file_name() != "target" {
                    directories.push(path);
                }
            } else if extensions.contains(&extension) {
                let text = fs::read_to_string(entry.path()).expect("a text file");
                found.push((path.to_str().expect("a path in UTF-8").to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

#[test]
fn dependencies_point_up_the_list_only() {
    let directories = crate_directories();
    let mut violations: Vec<String> = directories
        .iter()
        .flat_map(|directory| {
            let path = root().join("crates").join(directory).join("Cargo.toml");
            dependency_violations(directory, &fs::read_to_string(path).expect("a manifest"))
        })
        .collect();
    let stale = ALLOWED.iter().filter(|(name, _)| !directories.iter().any(|directory| directory == name));
    violations.extend(stale.map(|(name, _)| format!("the table has a row of crates/{name}, which is gone")));
    assert_none(&violations);
}

#[test]
fn pure_crates_touch_neither_files_nor_network_nor_processes() {
    let mut scanned = 0;
    let mut violations = Vec::new();
    for (directory, _) in PURE {
        for (path, source) in files(&format!("crates/{directory}/src"), &["rs"]) {
            violations.extend(purity_violations(directory, &path, &source));
            scanned += 1;
        }
    }
    assert!(scanned >= PURE.len(), "only {scanned} sources were found");
    assert_none(&violations);
}

#[test]
fn files_stay_short_and_finished() {
    let mut texts = files("crates", &["rs", "c", "h", "toml"]);
    texts.extend(files("scenarios", &["toml"]));
    texts.extend(files("docs", &["md"]));
    assert!(texts.iter().any(|(path, _)| path == "crates/cli/src/main.rs"), "main.rs was not found");
    let sources = |path: &str| !path.ends_with(".md") && !path.ends_with(".toml");
    let long =
        texts.iter().filter(|(path, _)| sources(path)).flat_map(|(path, text)| length_violations(path, text));
    let unfinished = texts.iter().flat_map(|(path, text)| unfinished_violations(path, text));
    assert_none(&long.chain(unfinished).collect::<Vec<_>>());
}

#[test]
fn printed_paths_are_escaped() {
    let mut violations = Vec::new();
    for directory in crate_directories() {
        for (path, source) in files(&format!("crates/{directory}/src"), &["rs"]) {
            violations.extend(raw_path_violations(&path, &source));
        }
    }
    assert_none(&violations);
}

#[test]
fn vm_tests_run_in_the_virtual_machine_only() {
    let is_vm_test = |path: &str| path.contains("/tests/vm_");
    let sources =
        files("crates", &["rs"]).into_iter().filter(|(path, _)| is_vm_test(path)).collect::<Vec<_>>();
    assert!(sources.len() >= 10, "only {} files of vm tests were found", sources.len());
    let violations = sources.iter().flat_map(|(path, source)| guest_violations(path, source));
    assert_none(&violations.collect::<Vec<_>>());
}

/// Crates in which the files and folders directly below `src` must not import each other in a circle.
const WITHOUT_CIRCLES: [&str; 9] =
    ["apply", "datapath", "experiment", "files", "host", "metrics", "netlink", "sim", "stations"];

/// Returns the module directly below `src` that contains a file; `None` for the crate's root, for tests and
/// for files outside of the crate's `src`.
fn module_of<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    let below = path.strip_prefix(&format!("crates/{directory}/src/"))?;
    let is_test = below.split(['/', '.']).any(|part| part == "tests" || part == "testing");
    let module = below.split(['/', '.']).next()?;
    (!is_test && module != "lib").then_some(module)
}

/// Returns the imports between modules, as pairs (from, to).
fn imports(directory: &str, sources: &[(String, String)]) -> BTreeSet<(String, String)> {
    let modules: BTreeSet<&str> = sources.iter().filter_map(|(path, _)| module_of(directory, path)).collect();
    let mut found = BTreeSet::new();
    for (path, source) in sources {
        let Some(from) = module_of(directory, path) else { continue };
        let tokens =
            tokens(&code_only(source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()));
        let imported = modules.iter().filter(|to| **to != from && mentions(&tokens, &format!("crate::{to}")));
        found.extend(imported.map(|to| (from.to_owned(), (*to).to_owned())));
    }
    found
}

/// Returns the imports that are part of a circle or lead from one circle to another. Repeatedly removes the
/// imports of modules that no module imports, and of modules that import nothing.
fn circle(mut imports: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    loop {
        let (from, to): (BTreeSet<String>, BTreeSet<String>) = imports.iter().cloned().unzip();
        let before = imports.len();
        imports.retain(|(importer, imported)| to.contains(importer) && from.contains(imported));
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn modules_import_without_a_circle() {
    for directory in WITHOUT_CIRCLES {
        let imports = imports(directory, &files(&format!("crates/{directory}/src"), &["rs"]));
        assert!(!imports.is_empty() || directory == "files", "no import found in {directory}");
        let circle = circle(imports);
        assert!(circle.is_empty(), "a circle in crates/{directory}/src: {circle:?}");
    }
}

#[test]
fn a_circle_is_found() {
    let source = |name: &str, text: &str| (format!("crates/apply/src/{name}.rs"), text.to_owned());
    let sources = [
        source("a", "use crate::b::B;"),
        source("b", "use std::fmt;\nuse crate::{c, d::D};"),
        source("c", "fn f() { crate::a::g() }"),
        source("d", "// use crate::a;\n\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}"),
    ];
    let found = circle(imports("apply", &sources));
    let names: Vec<String> = found.iter().map(|(from, to)| format!("{from}{to}")).collect();
    assert_eq!(names, ["ab", "bc", "ca"]);
}

// ---- The rules themselves --------------------------------------------------------------------------

#[test]
fn allowed_edges_point_up_the_list_only() {
    for (row, (name, allowed)) in ALLOWED.iter().enumerate() {
        for dependency in *allowed {
            let found = ALLOWED.iter().position(|(other, _)| other == dependency);
            assert!(found.is_some_and(|found| found < row), "{name} -> {dependency}");
        }
    }
}

#[test]
fn a_forbidden_dependency_is_named_wherever_it_stands() {
    let manifests = [
        "[dependencies]\nevenkeel-testbed = { path = '../testbed' }",
        "[dependencies]\nevenkeel-testbed.workspace = true",
        "[dev-dependencies]\nevenkeel-testbed.workspace = true",
        "[build-dependencies]\nevenkeel-testbed.workspace = true",
        "[dependencies]\nbed = { path = '../testbed', package = 'evenkeel-testbed' }",
        "[target.'cfg(unix)'.dependencies]\nevenkeel-testbed.workspace = true",
        "[dependencies.evenkeel-testbed]\nworkspace = true",
    ];
    for manifest in manifests {
        assert_eq!(
            dependency_violations("report", manifest),
            ["report -> testbed is not an allowed dependency"],
            "{manifest}"
        );
    }
    let cycle = dependency_violations("model", "[dependencies]\nevenkeel = { path = '../cli' }");
    assert_eq!(cycle, ["model -> cli is not an allowed dependency"]);
}

#[test]
fn allowed_and_foreign_dependencies_pass() {
    let manifest = "[dependencies]\nevenkeel-model.workspace = true\nserde.workspace = true\n\
                    [dev-dependencies]\nevenkeel-metrics.workspace = true\n";
    assert_eq!(dependency_violations("report", manifest), Vec::<String>::new());
}

#[test]
fn an_unknown_crate_and_a_damaged_manifest_are_violations() {
    assert_eq!(dependency_violations("novel", "").len(), 1);
    assert_eq!(dependency_violations("model", "[dependencies\n").len(), 1);
}

fn impure(directory: &str, source: &str) -> usize {
    purity_violations(directory, "lib.rs", source).len()
}

#[test]
fn impure_code_is_found() {
    for source in [
        "use std::net::IpAddr;",
        "use std::{fmt, net::IpAddr};",
        "use std::{\n    net,\n    fmt,\n};",
        "fn f() { std :: process :: Command::new(\"ls\"); }",
        "use ::std::process;",
        "let text = r#\"\"#; use std::fs;",
        "let quote = '\"'; use std::fs; let other = '\"';",
        "fn f<'a>(text: &'a str) { std::fs::read(text); }",
        "/* a /* nested */ comment */ use std::fs;",
    ] {
        assert_eq!(impure("metrics", source), 1, "{source}");
    }
}

#[test]
fn sockets_are_found_in_crates_that_may_use_addresses() {
    for source in [
        "use std::net::TcpStream;",
        "use std::net::{IpAddr, TcpStream};",
        "use std::{fmt, net::{IpAddr, TcpStream as Stream}};",
        "fn f() { std::net::TcpStream::connect(\"\"); }",
        "use std::net;\nfn f() { net::TcpStream::connect(\"\"); }",
        "use std::{fmt, net::{self, IpAddr}};\nfn f(one: net::TcpStream) {}",
    ] {
        assert_eq!(impure("model", source), 1, "{source}");
    }
    assert_eq!(impure("placement", "use std::net::{TcpListener, UdpSocket};"), 2);
    assert_eq!(impure("receive", "use std::net::*;"), 3, "all three kinds of sockets");
    for source in [
        "use std::net::{IpAddr, SocketAddr};",
        "use std::{net::IpAddr, fmt};",
        "use other::TcpStream;",
        "use std::net::IpAddr;\nfn f() -> TcpStream {}",
        "use std::{net::{IpAddr, Ipv4Addr}, other::{UdpSocket}};",
    ] {
        assert_eq!(impure("model", source), 0, "{source}");
    }
}

#[test]
fn comments_strings_and_likenesses_are_not_code() {
    for source in [
        "// use std::net::IpAddr;",
        "//! An unsafe thing: std::fs.",
        "/* std::process /* unsafe */ std::net */",
        "let text = \"std::net \\\" unsafe\";",
        "let text = r#\"unsafe \" std::fs\"#;",
        "let unsafe_flag = not_unsafe;",
        "use std::{fmt, collections::{net, fs}};",
        "use other::{net, fs, process};",
        "use mystd::net;",
    ] {
        assert_eq!(impure("model", source), 0, "{source}");
    }
}

#[test]
fn purity_is_a_rule_of_the_pure_crates_only() {
    assert_eq!(impure("transmit", "use std::net;"), 1);
    assert_eq!(impure("report", "fn f() { std::fs::read_dir(std::process::id().to_string()); }"), 0);
    for source in [
        "use std::process::Command;",
        "use std::{fs, process::{self, Command}};",
        "process::Command::new(\"ls\")",
    ] {
        assert_eq!(impure("report", source), 1, "{source}");
    }
    assert_eq!(impure("testbed", "use std::{fs, net, process};"), 0);
}

#[test]
fn long_files_are_found() {
    let lines = |count: usize| "x\n".repeat(count);
    assert_eq!(length_violations("crates/model/src/lib.rs", &lines(800)).len(), 0);
    assert_eq!(length_violations("crates/model/src/lib.rs", &lines(801)).len(), 1);
    assert_eq!(length_violations("crates/cli/src/main.rs", &lines(99)).len(), 0);
    assert_eq!(length_violations("crates/cli/src/main.rs", &lines(100)).len(), 1);
}

#[test]
fn vm_tests_without_the_check_are_found() {
    let found = |tests: &str| guest_violations("vm_a.rs", &format!("{GUEST_MODULE}\n{tests}"));
    assert_eq!(found("#[test]\nfn a() {\n    guest::require();\n    act();\n}"), [""; 0]);
    for test in [
        "#[test]\nfn a() {\n    act();\n    guest::require();\n}",
        "#[test]\nfn a() {\n    // guest::require();\n    act();\n}",
        "#[test]\n#[should_panic]\nfn a() {}\nfn b() { guest::require(); }",
    ] {
        assert_eq!(found(test), ["vm_a.rs: a does not begin with guest::require()"], "{test}");
    }
    let own = guest_violations("vm_a.rs", "mod guest { pub fn require() {} }");
    assert_eq!(own, ["vm_a.rs does not include scripts/vm/guest.rs"]);
}

#[test]
fn raw_paths_are_found() {
    let found = |path, source| raw_path_violations(path, source).len();
    assert_eq!(found("crates/apply/src/error.rs", "f(\n    .path.display()\n)"), 1);
    assert_eq!(
        found("crates/apply/src/error.rs", "path_text(path) // .display()\n#[cfg(test)]\n.display()"),
        0
    );
    assert_eq!(found("crates/model/src/text.rs", "path.display()"), 0);
}

#[test]
fn unfinished_work_is_found() {
    for mark in UNFINISHED {
        let text = format!("fn f() {{\n    // {mark} later\n}}\n");
        assert_eq!(unfinished_violations("lib.rs", &text), [format!("lib.rs:2: {mark}")]);
    }
    assert_eq!(unfinished_violations("lib.rs", "fn f() {}\n"), Vec::<String>::new());
}
