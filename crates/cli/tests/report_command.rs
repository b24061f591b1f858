//! Tests `evenkeel report`: its output, the paths that it refuses, and records that lack parts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{copy_binary, end, ended, evenkeel, file, names};
use tempfile::TempDir;

fn place() -> TempDir {
    let place = TempDir::new().unwrap();
    let run = ["run", "titan-3-flows", "--on", "sim", "--variant", "cmax", "--variant", "dqa", "--quick"];
    let ended = end(in_place(&place, &[&run[..], &["--quiet", "--out", "record"]].concat()));
    assert_eq!(ended.code, 0, "{ended:?}");
    place
}

fn in_place(place: &TempDir, arguments: &[&str]) -> Command {
    let mut command = evenkeel(arguments);
    command.current_dir(place.path());
    command
}

#[test]
fn a_record_becomes_a_page_that_names_no_path() {
    let place = place();
    let written = end(in_place(&place, &["report", "record"]));
    assert_eq!((written.code, written.stdout.as_str()), (0, ""), "{written:?}");
    assert_eq!(written.stderr, "report: report.html\n");
    let page = fs::read_to_string(place.path().join("report.html")).unwrap();
    for words in [
        "titan-3-flows in the simulator",
        "is fairest over 1 s",
        "The slowest flow gets ",
        "evenkeel run titan-3-flows --on sim --variant cmax --variant dqa --repeat 2 --quick --seed 1 --profile 4.4",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains(place.path().to_str().unwrap()));
    assert_eq!(fs::metadata(place.path().join("report.html")).unwrap().permissions().mode() & 0o600, 0o600);

    // Each way to name the record and the output leads to the same page.
    for arguments in [&["report", "record/record.json", "-o", "-"][..], &["report", "./record", "--out", "-"]]
    {
        let printed = end(in_place(&place, arguments));
        assert_eq!((printed.code, printed.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(printed.stdout == page, "{arguments:?}");
    }
    // A record from a pipe has no series.
    let mut command = in_place(&place, &["report", "-", "-o", "-"]);
    command.stdin(fs::File::open(place.path().join("record/record.json")).unwrap());
    let printed = end(command);
    assert!(printed.code == 0 && printed.stdout.contains("the record came without its directory"));
}

#[test]
fn the_command_of_a_page_repeats_the_run() {
    let place = place();
    assert_repeats(&place);
    let soft =
        ["run", "titan-3-flows", "--on", "sim", "--nic", "soft", "--processors", "3", "--profile", "4.4"];
    let rest = ["--variant", "cmax", "--quick", "--quiet", "--out", "soft"];
    let run = end(in_place(&place, &[&soft[..], &rest].concat()));
    assert_eq!(run.code, 0, "{run:?}");
    fs::remove_dir_all(place.path().join("record")).unwrap();
    fs::remove_dir_all(place.path().join("again")).unwrap();
    fs::rename(place.path().join("soft"), place.path().join("record")).unwrap();
    let command = assert_repeats(&place);
    assert!(command.contains(" --profile 4.4 --nic soft --processors 3"), "{command}");
}

/// Runs the command of the record's page. Checks that its figures are those of the record, and returns the
/// command.
fn assert_repeats(place: &TempDir) -> String {
    let page = end(in_place(place, &["report", "record", "-o", "-"])).stdout;
    let command = page.split("<pre><code>").nth(1).and_then(|rest| rest.split("</code>").next()).unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let again = end(in_place(place, &[&words[..], &["--quiet", "--out", "again"]].concat()));
    assert_eq!(again.code, 0, "{again:?}");
    let metrics = |name: &str| {
        let text = fs::read(place.path().join(name).join("record.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let variants = record["variants"].as_array().unwrap().clone();
        let repeats = variants.iter().flat_map(|variant| variant["repeats"].as_array().unwrap().clone());
        repeats.map(|repeat| repeat["metrics"].clone()).collect::<Vec<serde_json::Value>>()
    };
    assert_eq!(metrics("record"), metrics("again"));
    command.to_owned()
}

#[test]
fn an_existing_file_stays() {
    let place = place();
    fs::write(place.path().join("report.html"), "mine").unwrap();
    symlink("nowhere", place.path().join("link")).unwrap();
    for (out, why) in [
        ("report.html", "report.html already exists; name a new file with -o FILE\n"),
        ("link", "link already exists"),
        ("record", "record already exists"),
        ("/dev/null", "/dev/null already exists"),
        ("none/page.html", "No such file or directory"),
        ("report.html/page", "Not a directory"),
        ("/proc/page", "/proc/page"),
    ] {
        let refused = end(in_place(&place, &["report", "record", "-o", out]));
        assert!(refused.code == 2 && refused.stderr.contains(why), "{out}: {refused:?}");
    }
    assert_eq!(fs::read(place.path().join("report.html")).unwrap(), b"mine");
    assert_eq!(names(place.path()), ["link", "record", "report.html"]);
}

#[test]
fn a_directory_without_the_right_to_write_is_refused() {
    let place = place();
    let program = TempDir::new_in("/tmp").unwrap();
    let read_only = program.path().join("read-only");
    fs::create_dir(&read_only).unwrap();
    for path in [program.path(), &read_only, place.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    // Another user may not be able to enter the build directory or the directory of temporary files.
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (copy, record) = (program.path().join("evenkeel"), program.path().join("record.json"));
    copy_binary(&copy);
    fs::copy(place.path().join("record/record.json"), &record).unwrap();
    fs::set_permissions(&record, fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new(&copy);
    command.args(["report".as_ref(), record.as_os_str()]).current_dir(&read_only).stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let refused = end(command);
    assert!(refused.code == 2 && refused.stderr.contains("Permission denied"), "{refused:?}");
    assert_eq!(names(&read_only), Vec::<String>::new());
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_page_that_cannot_be_written_ends_with_4() {
    let place = place();
    let mut command = in_place(&place, &["report", "record", "-o", "-"]);
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let failed = ended(command.output().unwrap());
    assert!(failed.code == 4 && failed.stderr.contains("No space left"), "{failed:?}");
    // Close standard output before the command starts.
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" report record -o - >&-", env!("CARGO_BIN_EXE_evenkeel")]);
    let failed = end({
        command.current_dir(place.path());
        command
    });
    assert!(failed.code == 4 && !failed.stderr.is_empty(), "{failed:?}");
    // The file size limit takes effect in the middle of the page.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 8; exec \"$0\" report record", env!("CARGO_BIN_EXE_evenkeel")]);
    command.current_dir(place.path());
    let failed = end(command);
    assert!(failed.code == 4 && failed.stderr.contains("File too large"), "{failed:?}");
    assert_eq!(names(place.path()), ["record"]);
}

#[test]
fn bad_input_is_refused_before_a_file_appears() {
    let place = place();
    let path = |name: &str, text: &str| file(place.path(), name, text);
    path("truncated.json", "{\"schema\": 1,");
    path("other.json", "{}");
    path("newer.json", "{\"schema\": 9}");
    fs::create_dir(place.path().join("empty")).unwrap();
    for (arguments, why) in [
        (&["report", "missing"][..], "missing does not exist"),
        (&["report", "truncated.json"], "truncated"),
        (&["report", "other.json"], "is not a record"),
        (&["report", "newer.json"], "schema 9"),
        (&["report", "empty"], "empty/record.json does not exist"),
        (&["report", "record", "missing"], "missing does not exist"),
        (&["report"], "<RECORD>"),
        (&["report", "record", "record", "record"], "unexpected argument"),
        (&["report", "record", "-o"], "a value is required"),
    ] {
        let refused = end(in_place(&place, arguments));
        assert!(refused.code == 2 && refused.stderr.contains(why), "{arguments:?}: {refused:?}");
    }
    assert_eq!(names(place.path()), ["empty", "newer.json", "other.json", "record", "truncated.json"]);
}

#[test]
fn a_missing_series_is_named_on_the_page() {
    let place = place();
    fs::remove_file(place.path().join("record/series/cmax-0.csv.gz")).unwrap();
    let page = end(in_place(&place, &["report", "record", "-o", "-"]));
    assert_eq!(page.code, 0, "{:?}", page.stderr);
    assert!(page.stdout.contains("Not drawn: cmax, because series/cmax-0.csv.gz does not exist."));
    fs::remove_dir_all(place.path().join("record/series")).unwrap();
    let page = end(in_place(&place, &["report", "record", "-o", "-"]));
    assert!(page.code == 0 && page.stdout.contains("Not drawn: dqa"), "{:?}", page.stderr);
}

#[test]
fn a_series_of_another_variant_is_named_and_not_drawn() {
    let place = place();
    let drawn = end(in_place(&place, &["report", "record", "-o", "-"])).stdout;
    assert!(drawn.contains("class=\"flow\"") && !drawn.contains("Not drawn"));
    let series = |name: &str| place.path().join("record/series").join(name);
    fs::copy(series("dqa-0.csv.gz"), series("cmax-0.csv.gz")).unwrap();
    let page = end(in_place(&place, &["report", "record", "-o", "-"]));
    let words = "Not drawn: cmax, because series/cmax-0.csv.gz does not match the record: ";
    assert!(page.code == 0 && page.stdout.contains(words), "{}", page.stderr);
    assert!(page.stdout.contains("class=\"flow\""), "dqa is drawn");
}

#[test]
fn two_records_are_compared() {
    let place = place();
    let page = end(in_place(&place, &["report", "record", "record", "-o", "-"]));
    assert_eq!(page.code, 0, "{:?}", page.stderr);
    for words in ["two runs compared", "First record: titan-3-flows", "Second record: titan-3-flows"] {
        assert!(page.stdout.contains(words), "{words}");
    }
}

#[test]
fn a_study_becomes_a_page() {
    let place = TempDir::new().unwrap();
    let study = ["study", "tc", "--on", "sim", "--quick", "--scenario", "tc-work-conservation", "--quiet"];
    let done = end(in_place(&place, &[&study[..], &["--out", "study"]].concat()));
    assert_eq!(done.code, 0, "{done:?}");
    let written = end(in_place(&place, &["report", "study", "-o", "study.html"]));
    assert_eq!(written.code, 0, "{written:?}");
    let page = fs::read_to_string(place.path().join("study.html")).unwrap();
    assert!(page.contains("The qdisc study on sim") && page.contains("Findings"));
    for (arguments, why) in [
        (&["report", "study/study.json"][..], "name the study's directory"),
        (&["report", "study", "study"], "use `evenkeel compare`"),
    ] {
        let refused = end(in_place(&place, arguments));
        assert!(refused.code == 2 && refused.stderr.contains(why), "{arguments:?}: {refused:?}");
    }
}

#[test]
fn a_hostile_name_stays_text() {
    let place = place();
    let path: PathBuf = place.path().join("record/record.json");
    let name = "</script><img src=x onerror=alert(1)>";
    let text =
        fs::read_to_string(&path).unwrap().replace("\"name\": \"dqa\"", &format!("\"name\": \"{name}\""));
    fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    let page = end(in_place(&place, &["report", "record", "-o", "-"]));
    assert_eq!(page.code, 0, "{:?}", page.stderr);
    assert!(!page.stdout.contains("<img") && page.stdout.contains("&lt;img src=x onerror=alert(1)&gt;"));
    assert_eq!(page.stdout.matches("</script>").count(), 1);
}
