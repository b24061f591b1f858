//! Shared code for pictures in the documentation: SVG on a white background, for light and dark pages.

#![allow(dead_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Colours that colour-blind readers can distinguish (after Okabe and Ito), for the model, the paper and
/// further lines; and two colours for text.
pub const MODEL: &str = "#0072b2";
pub const PAPER: &str = "#b04a00";
pub const LINES: [&str; 3] = ["#0072b2", "#009e73", "#a0568a"];
pub const DARK: &str = "#222";
pub const GREY: &str = "#555";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Opens an SVG image, 760 pixels wide. `label` is its text for screen readers (`aria-label`).
pub fn open(height: u32, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"13\" \
         role=\"img\" aria-label=\"{label}\">\n<rect width=\"760\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    )
}

/// Adds a line of text. `style` contains further attributes.
pub fn text(svg: &mut String, (x, y): (f64, f64), style: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>");
}

pub fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
}
