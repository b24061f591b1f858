//! Tests that every relative link in the documentation leads to an existing file and heading, and that the
//! book contains every page of `docs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns all Markdown files below `docs`, and three files of the repository's root.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![Path::new(ROOT).join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| Path::new(ROOT).join(name)));
    found
}

/// Returns the lines of a page without blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the anchors of a page's headings, as GitHub and mdBook generate them. GitHub and mdBook also
/// number repeated headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let letter = |character: char| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => character.to_lowercase().next(),
        _ => None,
    };
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim().chars().filter_map(letter).collect()).collect()
}

/// Returns the targets of a page's links, `](target)`.
fn targets(text: &str) -> Vec<String> {
    let lines: Vec<&str> = prose(text).collect();
    let ends = lines.iter().flat_map(|line| line.split("](").skip(1));
    ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

fn dead_links(page: &Path, text: &str) -> Vec<String> {
    let is_dead = |target: &String| {
        if target.contains("://") {
            return false;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
        let has_anchor = || fs::read_to_string(&path).is_ok_and(|text| anchors(&text).contains(anchor));
        !path.exists() || !anchor.is_empty() && !has_anchor()
    };
    targets(text).into_iter().filter(is_dead).map(|target| format!("{}: {target}", page.display())).collect()
}

#[test]
fn links_lead_somewhere() {
    let dead: Vec<String> =
        pages().iter().flat_map(|page| dead_links(page, &fs::read_to_string(page).unwrap())).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn dead_links_are_found() {
    let page = Path::new(ROOT).join("README.md");
    let text = "[a](nowhere.md) [b](README.md#nothing) [c](#install)\n```\n[d](nowhere.md)\n```\n## Install";
    assert_eq!(dead_links(&page, text).len(), 2);
}

#[test]
fn every_page_is_in_the_book() {
    let docs = Path::new(ROOT).join("docs");
    let contents: BTreeSet<PathBuf> = targets(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap())
        .iter()
        .map(|target| docs.join(target))
        .collect();
    let missing: Vec<PathBuf> = pages()
        .into_iter()
        .filter(|page| page.starts_with(&docs) && !page.ends_with("SUMMARY.md") && !contents.contains(page))
        .collect();
    assert!(missing.is_empty(), "add these pages to docs/SUMMARY.md: {missing:?}");
}
