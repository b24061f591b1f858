//! The document around the content: head, style, script, and the filter of variants.

use evenkeel_model::text::{counted, is_invisible};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figure::{Figure, Level};
use super::looks::Variants;
use super::{Source, flows, percentiles, settings, strips, summary, windows};
use crate::format::clean;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// SHA-256 of [`SCRIPT`] in base64. The browser runs no other script.
const SCRIPT_HASH: &str = "ONRtJXTaMf7Rx9Iz7uEIwd9lOgPGgbBuB6fTgMFLtDQ=";

/// Returns the page of a record. Reads the raw series of one repeat of each of the first 24 variants.
#[must_use]
pub fn record(source: &Source<'_>) -> String {
    let variants = Variants::of(source.record.variants.iter().map(|variant| variant.name.as_str()));
    document(
        &summary::title(source.record),
        &variants,
        &html! {
            (summary::summary(source.record, Level(2)))
            (filter(&variants))
            (plots(source, &variants, Level(2)))
            (settings::settings(source.record, &variants, Level(2)))
        },
    )
}

pub(super) fn body(source: &Source<'_>, variants: &Variants, level: Level) -> Markup {
    html! {
        (summary::summary(source.record, level))
        (plots(source, variants, level))
        (settings::settings(source.record, variants, level))
    }
}

fn plots(source: &Source<'_>, variants: &Variants, level: Level) -> Markup {
    let record = source.record;
    let (strips, same) = strips::figures(record, variants);
    let flows = flows::figure(source, variants);
    let (first, others) = strips.split_at(strips.len().min(1));
    let (windows, percentiles) = (windows::figure(record, variants), percentiles::figures(record, variants));
    let figures = first.iter().chain(&windows).chain(others).chain(&percentiles);
    // Small multiples need the whole width.
    let (panels, single): (Vec<&Figure>, Vec<&Figure>) =
        figures.partition(|figure| figure.drawings.len() > 1);
    let paper = if record.paper.is_some() { " A diamond is the paper's figure." } else { "" };
    html! {
        (level.heading("Plots"))
        p.caption {
            "A dot is a repeat; bar and number are the mean of the repeats. A thin line through the bar's end is the \
             mean's 95 % confidence interval, which needs five repeats." (paper)
        }
        div.pair {
            @for figure in single { (figure.render(level.below())) }
        }
        @if !same.is_empty() {
            p.caption { "The same in all variants: " (clean(&same.join(", "))) "." }
        }
        @for figure in panels { (figure.render(level.below())) }
        @match flows {
            Ok(figure) => (figure.render(level.below())),
            Err(why) => p.caption { (clean(&why)) },
        }
    }
}

/// Returns the check boxes that show or hide variants. They work by CSS alone. The form's reset button
/// shows all variants again. Returns nothing if there is only one variant.
pub(super) fn filter(variants: &Variants) -> Markup {
    let names = variants.names();
    html! {
        @if names.len() > 1 {
            form.filter {
                fieldset {
                    legend { "Show " (counted(names.len(), "variant")) }
                    div.switches {
                        @for (number, name) in names.iter().enumerate() {
                            label {
                                input type="checkbox" id=(format!("f{number}")) autocomplete="off" checked;
                                " " (clean(name))
                            }
                        }
                    }
                    button type="reset" { "Show all" }
                }
            }
        }
    }
}

pub(super) fn document(title: &str, variants: &Variants, content: &Markup) -> String {
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_HASH}'; base-uri 'none'; \
         form-action 'none'"
    );
    let hidden: String = (0..variants.names().len())
        .map(|number| format!("body:has(#f{number}:not(:checked)) .v{number}{{display:none}}"))
        .collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("evenkeel {}", env!("CARGO_PKG_VERSION")));
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(hidden)) }
            }
            body {
                main { h1 { (title) } (content) }
                footer { p { "Written by evenkeel " (env!("CARGO_PKG_VERSION")) " from the record alone." } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    displayed(&page.into_string())
}

/// Replaces control characters and invisible characters with U+FFFD, except line breaks and tabs.
/// Bidirectional controls, for example, can disguise text.
fn displayed(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' | '\t' => character,
            other if is_invisible(other) => '\u{fffd}',
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// Returns bytes in base64 (RFC 4648, section 4).
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..4 {
                let value = (bits >> (18 - 6 * digit)) & 63;
                text.push(if digit <= chunk.len() { char::from(DIGITS[value as usize]) } else { '=' });
            }
        }
        text
    }

    #[test]
    fn the_policy_allows_the_script() {
        assert_eq!(base64(b"light w"), "bGlnaHQgdw==");
        assert_eq!(SCRIPT_HASH, base64(&Sha256::digest(SCRIPT)));
    }
}
