//! Tests that no file makes the parser panic, overflow the stack or run for a long time, and that error
//! messages are safe to print.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn must_not_panic(text: &str) {
    if let Err(error) = parse_text(text) {
        let message = error.to_string();
        assert!(message.starts_with(&format!("x.toml:{}:{}: ", error.line, error.column)), "{message}");
        assert!(!message.chars().any(char::is_control), "{message:?}");
        assert!(message.chars().count() < 6000, "{} characters: {message}", message.chars().count());
        assert!(error.line <= text.lines().count() + 1, "line {} of {}", error.line, text.lines().count());
    }
}

#[test]
fn deep_nesting_is_refused_at_its_place() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let text = format!("{VALID}\nx = {}1{}", open.repeat(200_000), close.repeat(200_000));
        let error = parse_text(&text[..text.len().min(1 << 20)]).unwrap_err();
        assert!(error.to_string().contains("recurse"), "{error}");
        assert_eq!(error.line, VALID.lines().count() + 2);
    }
    for (before, after) in [("", " = 1"), ("[", "]"), ("[[", "]]")] {
        let text = format!("{VALID}\n\n{before}a{}{after}\n[z]\nb = 1\n", ".a".repeat(100_000));
        let error = parse_text(&text).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
        assert_eq!((error.line, error.column), (VALID.lines().count() + 3, 1));
    }
}

#[test]
fn hostile_files_are_refused_quickly() {
    let repeated = |part: &dyn Fn(usize) -> String| {
        let mut text = VALID.to_owned();
        let mut number = 0;
        while text.len() < (1 << 20) - 200 {
            text += &part(number);
            number += 1;
        }
        text
    };
    let texts = [
        repeated(&|number| format!("[variant.v{number}]\nbase = \"v{}\"\nsummary = \"s\"\n", number + 1)),
        repeated(&|number| {
            format!("[variant.v{number}]\nbase = \"v{}\"\nsummary = \"s\"\n", number.max(1) - 1)
        }),
        repeated(&|number| format!("[variant.v{number}]\nbase = \"dqaa\"\nsummary = \"s\"\n")),
        repeated(&|number| format!("[[expect]]\nvariant = \"q{number}\"\nmetric = \"nfn\"\n")),
        repeated(&|number| format!("key{number} = 1\n")),
        repeated(&|number| format!("[paper.variants.v{number}]\nnfm.{number} = nan\n")),
        VALID.replace("variants = [", &format!("variants = [{}", "\"dqaa\",".repeat(100_000))),
        VALID.replace("schema = 1", &format!("schema = {}", "1".repeat(900_000))),
        VALID.replace("10gbit", &format!("{}gbit", "1".repeat(900_000))),
        VALID.replace("10gbit", &format!("10{}", "g".repeat(900_000))),
        VALID.replace("[link]", &format!("[link]\n{} = 1", "k".repeat(900_000))),
        VALID.replace("small", &"s".repeat(200_000)),
        "[".repeat(1 << 20),
        "\"".repeat(1 << 20),
        "a.".repeat(1 << 19),
        "[[a]]\n".repeat(150_000),
        "x".repeat((1 << 20) + 1),
    ];
    for text in texts {
        let start = Instant::now();
        must_not_panic(&text);
        // The limit allows for a debug build on a busy machine; a parser with quadratic time would take
        // minutes.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}: {}", &text[..text.len().min(2000)]);
    }
}

#[test]
fn a_long_chain_of_bases_is_resolved() {
    let mut text = VALID.replace("variants = [", "variants = [\"v9999\", ");
    text += "[variant.v0]\nbase = \"cmax\"\nsummary = \"s\"\ngso-size = \"4KiB\"\n";
    for number in (1..10_000).rev() {
        text += &format!("[variant.v{number}]\nbase = \"v{}\"\nsummary = \"s\"\n", number - 1);
    }
    let scenario = parse_text(&text).unwrap();
    assert_eq!(scenario.variants[0].knobs().gso_size, ByteSize::from_kib(4));
}

#[test]
fn complaints_are_safe_to_print() {
    let text = VALID.replace("[link]", "[link]\n\"\\u001b[2J\\u202e\" = 1");
    assert_eq!(
        parse_text(&text).unwrap_err().to_string(),
        "x.toml:8:1: link.\"\\u001b[2J\\u202e\": unknown key; known keys: rate, mtu, queues, topology, priorities, receive-queues"
    );
    let error = parse("", "a\u{1b}[2J.toml", &[]).unwrap_err();
    assert!(error.to_string().starts_with("a\\u001b[2J.toml:1:1: "), "{error}");
    let text = VALID.replace("[link]", &format!("[link]\n{} = 1", "k".repeat(1000)));
    assert!(parse_text(&text).unwrap_err().to_string().len() < 200);
}

fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> =
        std::iter::once(VALID).chain(bundled().iter().map(|(_, text)| *text)).map(str::to_owned).collect();
    let snippets = prop::sample::select(vec![
        "",
        "0",
        "-1",
        "1e999",
        "nan",
        "\"\"",
        "\"10\"",
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        "\n",
        "\"",
        "'''",
        "[[x]]\n",
        "true",
        "[link]\n",
        "schema = 2\n",
        "\u{0}",
        "\u{feff}",
        "ä",
        "1979-05-27",
        "[variant.dqa]\n",
        "base = \"small\"\n",
    ]);
    let change = (any::<prop::sample::Index>(), 0_usize..40, snippets);
    (prop::sample::select(texts), prop::collection::vec(change, 1..6)).prop_map(|(mut text, changes)| {
        for (place, removed, inserted) in changes {
            let boundaries: Vec<usize> =
                text.char_indices().map(|(offset, _)| offset).chain([text.len()]).collect();
            let start = place.index(boundaries.len());
            let end = (start + removed).min(boundaries.len() - 1);
            text.replace_range(boundaries[start]..boundaries[end], inserted);
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(text) = str::from_utf8(&bytes) {
            must_not_panic(text);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "(?s)[\\[\\]{}=.,\"'#\\\\a-z0-9 \\n\\r\u{1b}äµ+-]{0,300}") {
        must_not_panic(&text);
    }

    #[test]
    fn no_change_to_a_valid_file_makes_it_panic(text in mutated()) {
        must_not_panic(&text);
    }

    #[test]
    fn no_truncation_of_a_valid_file_makes_it_panic(end in 0..VALID.len()) {
        must_not_panic(&VALID[..end]);
    }

    #[test]
    fn no_variant_table_makes_it_panic(table in mutated()) {
        let _ = parse(VALID, "x.toml", &[("titan", &table)]);
    }
}
