//! Checks that the modules of the simulator and of its stations form layers: a module imports only
//! lower modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules of the stations, from the lowest to the highest. Modules of one folder may use each
/// other.
const STATIONS: &[&str] = &["time", "segment", "tcp", "qdisc", "nic"];

/// The top-level modules of the simulator, from the lowest to the highest.
const LAYERS: &[&str] = &[
    "prefetch",
    "random",
    "event",
    "progress",
    "observation",
    "processors",
    "arrivals",
    "error",
    "engine",
    "costs",
    "parameters",
    "settings",
    "sink",
    "host",
    "network",
    "tenants",
    "receive",
    "transfers",
    "memory",
    "world",
];

/// Returns the higher layers that a source of `module` uses. Code after `#[cfg(test)]` may use any
/// layer.
fn upward(layers: &[&str], module: &str, source: &str) -> BTreeSet<String> {
    let own = layers.iter().position(|layer| *layer == module);
    let code = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.split("crate::")
        .skip(1)
        .flat_map(|path| {
            let (group, end) = match path.strip_prefix('{') {
                Some(group) => (group, group.find(';')),
                None => (path, path.find(|letter: char| !letter.is_alphanumeric() && letter != '_')),
            };
            let names = group[..end.unwrap_or(group.len())].split(',');
            names
                .map(|name| name.split("::").next().unwrap_or_default().trim_matches([' ', '}']).to_owned())
                .collect::<Vec<_>>()
        })
        .filter(|name| layers.iter().position(|layer| layer == name) > own)
        .collect()
}

/// Returns the Rust sources below a directory, except tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn imports_point_to_lower_layers() {
    for (directory, layers) in [("../stations/src", STATIONS), ("src", LAYERS)] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        let mut modules = BTreeSet::new();
        for path in sources(&root) {
            let inside = path.strip_prefix(&root).unwrap();
            let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
            if module == "lib" {
                continue;
            }
            let found = upward(layers, &module, &fs::read_to_string(&path).unwrap());
            assert!(found.is_empty(), "{} uses {found:?}, which are above it", inside.display());
            modules.insert(module);
        }
        assert_eq!(modules, layers.iter().map(|layer| (*layer).to_owned()).collect());
    }
}

#[test]
fn an_import_of_a_higher_layer_is_found() {
    let found = |source: &str| upward(LAYERS, "engine", source).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::random::Generator;\nuse crate::event::Slot;\n"), [""; 0]);
    assert_eq!(found("use crate::host::Simulation;\n"), ["host"]);
    assert_eq!(found("use crate::{event::Slot, network::Cluster, world};\n"), ["network", "world"]);
    assert_eq!(found("fn f() -> crate::sink::Sink {}\n"), ["sink"]);
    assert_eq!(
        found("// crate::host\n\n#[cfg(test)]\nmod tests {\n    use crate::host::Simulation;\n}\n"),
        [""; 0]
    );
}
