//! Quotes names and values so that each kind of file reads them literally. The functions refuse a name
//! or a value that a file cannot hold.

use std::fmt::Write;

use evenkeel_model::shell::Line;

/// Returns a line of `sysctl.d(5)`. In names, `*`, `?` and `[` are patterns; a first character of `#`, `;` or
/// `-` has a special meaning.
pub(super) fn sysctl(name: &str, value: &str) -> Option<String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-/:@+".contains(character);
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let value = value.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let is_value = |character: char| character == ' ' || character.is_ascii_graphic();
    (starts_well && name.chars().all(is_plain) && value.chars().all(is_value))
        .then(|| format!("{name} = {value}"))
}

#[derive(Debug)]
pub(super) struct UdevRule(String);

impl UdevRule {
    /// Returns the rule that sets an attribute of the interface. `%` and `$` begin substitutions.
    pub(super) fn attribute(interface: &str, file: &str, value: &str) -> Option<Self> {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-/".contains(character);
        let is_value =
            |character: char| character == ' ' || character.is_ascii_graphic() && !"\"\\".contains(character);
        if !file.chars().all(is_plain) || !value.chars().all(is_value) {
            return None;
        }
        let value = value.replace('%', "%%").replace('$', "$$");
        Self::new(interface, &format!(r#"ATTR{{{file}}}="{value}""#))
    }

    /// Returns the rule that runs a command. udev and the shell quote differently, so only a command that
    /// needs no quotes is accepted.
    pub(super) fn run(interface: &str, line: &Line) -> Option<Self> {
        let is_plain =
            |character: char| character.is_ascii_alphanumeric() || " ._-@/=:,+".contains(character);
        let command = line.command().filter(|command| command.chars().all(is_plain))?;
        Self::new(interface, &format!(r#"RUN+="/bin/sh -c 'PATH=/usr/sbin:/usr/bin:/sbin:/bin; {command}'""#))
    }

    /// Creates a rule for an interface. NAME is the name of the interface after it was renamed.
    fn new(interface: &str, assignment: &str) -> Option<Self> {
        let pattern = pattern(interface)?;
        Some(Self(format!(r#"ACTION=="add|move", SUBSYSTEM=="net", NAME=="{pattern}", {assignment}"#)))
    }

    pub(super) fn into_line(self) -> String {
        self.0
    }
}

/// Returns the udev pattern that matches only this name: in brackets, `*`, `?` and `[` are literal
/// (fnmatch(3)). Returns `None` if no pattern can match the name: `|` separates patterns even in brackets,
/// and `"` and `\` are not possible in a udev string. Also returns `None` if a character is not visible
/// ASCII.
fn pattern(name: &str) -> Option<String> {
    let mut text = String::new();
    for character in name.chars() {
        match character {
            '*' | '?' | '[' => {
                let _ = write!(text, "[{character}]");
            }
            '"' | '\\' | '|' => return None,
            _ if character.is_ascii_graphic() => text.push(character),
            _ => return None,
        }
    }
    Some(text)
}

/// Returns a command of a unit, for a shell. `\`, `"`, `%` and `$` are special (systemd.service(5)). If
/// one command fails, the next commands still run.
pub(super) fn unit_command(line: &Line) -> Option<String> {
    let mut quoted = String::new();
    for character in line.command()?.chars() {
        match character {
            '\\' | '"' => quoted.extend(['\\', character]),
            '%' | '$' => quoted.extend([character, character]),
            _ => quoted.push(character),
        }
    }
    Some(format!("ExecStart=-/bin/sh -c \"{quoted}\""))
}

/// Returns text for a unit's description. In a description, `%` begins a specifier, and `\` at the end
/// of a line continues the line.
pub(super) fn unit_text(text: &str) -> String {
    evenkeel_model::text::printable(text).replace('\\', "/").replace('%', "%%")
}

/// Returns a name as systemd-escape(1) writes it in a unit's name.
pub(super) fn unit_name(name: &str) -> String {
    let mut text = String::new();
    for (at, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':' || (byte == b'.' && at > 0) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns the interface's part of a file name. Two interfaces never share a file.
pub(super) fn file_name(interface: &str) -> String {
    let mut text = String::new();
    for byte in interface.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(interface: &str) -> Option<String> {
        let line = Line::new("ethtool -G {} rx {}", &[&interface, &4096]);
        UdevRule::run(interface, &line).map(UdevRule::into_line)
    }

    #[test]
    fn a_rule_of_udev_is_for_one_interface_alone() {
        let rule = |name: &str| UdevRule::attribute(name, "mtu", "9000").map(UdevRule::into_line);
        let of = |pattern: &str| {
            Some(format!(r#"ACTION=="add|move", SUBSYSTEM=="net", NAME=="{pattern}", ATTR{{mtu}}="9000""#))
        };
        assert_eq!(rule("eth0"), of("eth0"));
        assert_eq!(rule("e*t?[0]"), of("e[*]t[?][[]0]"));
        for name in ["a|b", "\",RUN+=\"x", "a\\", "a\nb", "ä", "a b"] {
            assert_eq!(rule(name), None, "{name:?}");
        }
        assert!(run("eth0").unwrap().ends_with(r#"; ethtool -G eth0 rx 4096'""#));
        assert_eq!(run("e*"), None, "its command has quotes");
        let value = |value: &str| UdevRule::attribute("eth0", "mtu", value).map(UdevRule::into_line);
        assert!(value("5%k$x").unwrap().ends_with(r#"ATTR{mtu}="5%%k$$x""#));
        assert_eq!((value("a\"b"), value("a\nb")), (None, None));
        assert!(UdevRule::attribute("eth0", "a}=\"x\"", "1").is_none());
    }

    #[test]
    fn a_line_of_sysctl_is_one_setting() {
        assert_eq!(sysctl("net.core.rmem_max", "1\t2").unwrap(), "net.core.rmem_max = 1 2");
        for name in ["net.ipv4.conf.*.forwarding", "-x", "#x", "a=b", "a\nb", "a[b]", ""] {
            assert_eq!(sysctl(name, "1"), None, "{name:?}");
        }
        assert_eq!(sysctl("a", "1\nkernel.core_pattern = |x").unwrap(), "a = 1 kernel.core_pattern = |x");
        assert_eq!(sysctl("a", "1\u{1b}"), None);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(unit_name("eth0.7"), "eth0.7");
        assert_eq!(unit_name("en-p1"), "en\\x2dp1");
        assert_eq!(unit_name(".e"), "\\x2ee");
        assert_eq!(file_name("en-p1"), "en-p1");
        assert_eq!((file_name("a;b"), file_name("a$b")), (r"a\x3bb".to_owned(), r"a\x24b".to_owned()));
        assert_eq!(file_name("a\\x3bb"), r"a\x5cx3bb");
        assert_eq!(unit_text("a\\\nb %H"), "a//nb %%H");
    }

    #[test]
    fn a_command_of_a_unit_is_quoted_for_it() {
        let line = Line::new(r#"a "$b" {}"#, &[&"5%"]);
        assert_eq!(unit_command(&line).unwrap(), r#"ExecStart=-/bin/sh -c "a \"$$b\" '5%%'""#);
        assert_eq!(unit_command(&Line::comment("x")), None);
        assert_eq!(unit_command(&line.remark("more")), None);
    }
}
