//! Unpacks a host from one text file into the tree of files that `evenkeel check --from` reads.
//!
//! A file has sections, each of which starts with a line `== PATH`:
//!
//! | header | content |
//! |---|---|
//! | `== proc/net/softnet_stat` | the file's text |
//! | `== sys/class/net/eth0/*` | a line `mtu = 1500` for each file below that directory |
//! | `== proc/net/netstat pairs` | a line `TcpExt.ListenDrops 12` for each counter |
//! | `== proc/interrupts sparse` | `processors: 64`, then rows `150: 3=8123 5=22 \| PCI-MSI 1-edge eth0-0` |
//! | `== sys/class/net/eth0/device -> ../../../devices/virtio1` | none: a symbolic link |
//!
//! `for 0-3 n=7,8,9,9: TEXT` repeats a line. In its text, `<i>` is the number, `<n>` the member of the
//! list, and `<i%2+1>` is computed from left to right. `<0-127: i%32>` repeats the members of a list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

type Variables = BTreeMap<String, u64>;

pub fn unpack(text: &str, directory: &Path) -> Result<(), String> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("== ") {
            sections.push((header.trim(), Vec::new()));
        } else if let Some((_, lines)) = sections.last_mut() {
            lines.push(line);
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(format!("'{line}' is in front of the first section"));
        }
    }
    for (header, lines) in sections {
        section(header, &lines, directory).map_err(|error| format!("== {header}: {error}"))?;
    }
    Ok(())
}

fn section(header: &str, lines: &[&str], directory: &Path) -> Result<(), String> {
    if let Some((path, target)) = header.split_once(" -> ") {
        let place = place(path, directory)?;
        return std::os::unix::fs::symlink(target, place).map_err(|error| error.to_string());
    }
    let (path, form) = header.split_once(' ').unwrap_or((header, ""));
    let lines = expand(lines)?;
    if let Some(above) = path.strip_suffix("/*") {
        for line in lines.iter().filter(|line| !line.is_empty()) {
            let (name, content) =
                line.split_once(" =").ok_or_else(|| format!("'{line}' is not 'NAME = TEXT'"))?;
            write(&format!("{above}/{}", name.trim()), content.trim_start(), directory)?;
        }
        return Ok(());
    }
    let content = match form {
        "" => lines.join("\n").trim_end().to_owned(),
        "pairs" => pairs(&lines)?,
        "sparse" => interrupts(&lines)?,
        _ => return Err(format!("'{form}' is none of 'pairs' and 'sparse'")),
    };
    write(path, &content, directory)
}

fn place(path: &str, directory: &Path) -> Result<std::path::PathBuf, String> {
    let place = directory.join(path);
    let parent = place.parent().ok_or("no directory")?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    Ok(place)
}

/// Writes a file. Returns an error if another section has already written this file.
fn write(path: &str, content: &str, directory: &Path) -> Result<(), String> {
    let place = place(path, directory)?;
    if place.exists() {
        return Err(format!("{path} is written twice"));
    }
    std::fs::write(&place, format!("{content}\n")).map_err(|error| format!("{path}: {error}"))
}

/// Parses a list of numbers such as `0-3,8`.
fn range(text: &str) -> Result<Vec<u64>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

/// Repeats the lines that start with `for`, and computes the expressions in angle brackets.
fn expand(lines: &[&str]) -> Result<Vec<String>, String> {
    let mut expanded = Vec::new();
    for line in lines {
        let Some(rest) = line.strip_prefix("for ") else {
            expanded.push(substitute(line, &Variables::new())?);
            continue;
        };
        let (head, text) = rest.split_once(": ").ok_or_else(|| format!("'{line}' has no ': '"))?;
        let mut words = head.split(' ');
        let numbers = range(words.next().unwrap_or_default())?;
        let mut lists = Vec::new();
        for word in words {
            let (name, list) = word.split_once('=').ok_or_else(|| format!("'{word}' is no NAME=LIST"))?;
            let list = list.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>();
            let list = list.map_err(|error| format!("{name}: {error}"))?;
            if list.len() != numbers.len() {
                return Err(format!("{name} has {} members for {} lines", list.len(), numbers.len()));
            }
            lists.push((name.to_owned(), list));
        }
        for (at, number) in numbers.iter().enumerate() {
            let mut variables: Variables = [("i".to_owned(), *number)].into();
            variables.extend(lists.iter().map(|(name, list)| (name.clone(), list[at])));
            expanded.push(substitute(text, &variables)?);
        }
    }
    Ok(expanded)
}

fn substitute(text: &str, variables: &Variables) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('<') {
        let (expression, after) =
            behind.split_once('>').ok_or_else(|| format!("'{text}' has a '<' without '>'"))?;
        result.push_str(before);
        match expression.split_once(": ") {
            Some((numbers, member)) => {
                let mut members = Vec::new();
                for number in range(numbers)? {
                    members.push(formatted(member, &[("i".to_owned(), number)].into())?);
                }
                result.push_str(&members.join(", "));
            }
            None => result.push_str(&formatted(expression, variables)?),
        }
        rest = after;
    }
    Ok(result + rest)
}

/// Computes an expression. A format may follow a colon: `hex`, `x` (hexadecimal with eight digits), or
/// `mask` (a mask with only this bit set, in words of 32 bits).
fn formatted(text: &str, variables: &Variables) -> Result<String, String> {
    let (expression, format) = text.split_once(':').unwrap_or((text, ""));
    let value = value(expression, variables)?;
    match format {
        "" => Ok(value.to_string()),
        "hex" => Ok(format!("{value:x}")),
        "x" => Ok(format!("{value:08x}")),
        "mask" => {
            let mut mask = format!("{:08x}", 1_u32 << (value % 32));
            for _ in 0..value / 32 {
                mask.push_str(",00000000");
            }
            Ok(mask)
        }
        _ => Err(format!("'{format}' is none of 'hex', 'x' and 'mask'")),
    }
}

/// Computes an expression from left to right: `150+i%4` is the remainder of the sum.
fn value(expression: &str, variables: &Variables) -> Result<u64, String> {
    let failed = || format!("'{expression}' cannot be computed");
    let operand = |text: &str| {
        text.parse()
            .ok()
            .or_else(|| variables.get(text).copied())
            .ok_or_else(|| format!("'{text}' is unknown"))
    };
    let mut rest = expression.trim();
    let mut result: Option<u64> = None;
    let mut operator = '+';
    loop {
        let end = rest.find(['+', '-', '*', '/', '%']).unwrap_or(rest.len());
        let right = operand(rest[..end].trim())?;
        let left = result.unwrap_or(0);
        let computed = match operator {
            '+' => left.checked_add(right),
            '-' => left.checked_sub(right),
            '*' => left.checked_mul(right),
            '/' => left.checked_div(right),
            _ => left.checked_rem(right),
        };
        result = Some(computed.ok_or_else(failed)?);
        let Some(next) = rest[end..].chars().next() else { break };
        (operator, rest) = (next, &rest[end + 1..]);
    }
    result.ok_or_else(failed)
}

/// Formats counters as the kernel does: a line of names and a line of values for each group.
fn pairs(lines: &[String]) -> Result<String, String> {
    let mut groups: Vec<(&str, String, String)> = Vec::new();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let parts = line.split_once('.').and_then(|(group, rest)| Some((group, rest.split_once(' ')?)));
        let (group, (name, value)) = parts.ok_or_else(|| format!("'{line}' is not 'GROUP.NAME VALUE'"))?;
        if groups.last().is_none_or(|(last, _, _)| *last != group) {
            groups.push((group, String::new(), String::new()));
        }
        if let Some((_, names, values)) = groups.last_mut() {
            let _ = write!(names, " {name}");
            let _ = write!(values, " {}", value.trim());
        }
    }
    let line =
        |(group, names, values): &(&str, String, String)| format!("{group}:{names}\n{group}:{values}\n");
    Ok(groups.iter().map(line).collect())
}

/// Formats the table of interrupts with a column per CPU.
fn interrupts(lines: &[String]) -> Result<String, String> {
    let mut lines = lines.iter().filter(|line| !line.is_empty());
    let count = lines.next().and_then(|line| line.strip_prefix("processors: ")?.trim().parse::<usize>().ok());
    let count = count.ok_or("the first line is not 'processors: N'")?;
    let mut table: String = " ".repeat(5);
    for processor in 0..count {
        let _ = write!(table, " {:>10}", format!("CPU{processor}"));
    }
    table.push('\n');
    for line in lines {
        let parts = line.split_once(':').and_then(|(number, rest)| Some((number, rest.split_once('|')?)));
        let (number, (served, action)) = parts.ok_or_else(|| format!("'{line}' is not a row"))?;
        let mut counts = vec![0_u64; count];
        for word in served.split_ascii_whitespace() {
            let pair =
                word.split_once('=').and_then(|(at, n)| Some((at.parse::<usize>().ok()?, n.parse().ok()?)));
            let (processor, times) = pair.ok_or_else(|| format!("'{word}' is no PROCESSOR=COUNT"))?;
            *counts.get_mut(processor).ok_or_else(|| format!("there is no CPU{processor}"))? = times;
        }
        let _ = write!(table, "{:>4}:", number.trim());
        for times in counts {
            let _ = write!(table, " {times:>10}");
        }
        let _ = writeln!(table, "  {}", action.trim());
    }
    Ok(table)
}
