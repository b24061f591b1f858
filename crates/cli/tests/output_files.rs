//! Tests where results are written. Commands check the location before the work, and print a result
//! even if it cannot be stored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Ended, copy_binary, end, ended, evenkeel, names};
use tempfile::TempDir;

const QUICK: &[&str] = &["--on", "sim", "--variant", "cmax", "--quick", "--repeat", "1"];
const STUDY: &[&str] = &["study", "tc", "--on", "sim", "--quick", "--scenario", "tc-work-conservation"];

/// Returns the command of a short simulated run in the directory `from`. The run stores its record in
/// `out`, or in the default directory.
fn a_run(from: &Path, out: Option<&str>) -> Command {
    let mut arguments = [&["run", "titan-3-flows"], QUICK].concat();
    arguments.extend(out.iter().flat_map(|out| ["--out", out]));
    let mut command = evenkeel(&arguments);
    command.current_dir(from).stdin(Stdio::null());
    command
}

/// Checks that the command failed before the simulation, without a result and without progress.
fn assert_refused(ended: &Ended, code: i32, why: &str) {
    assert!(ended.code == code && ended.stdout.is_empty(), "{ended:?}");
    assert!(ended.stderr.contains(why) && !ended.stderr.contains(" %  "), "{why}: {ended:?}");
}

#[test]
fn a_place_that_cannot_take_the_record_is_refused_before_the_run() {
    let place = TempDir::new().unwrap();
    let from = place.path();
    fs::write(from.join("file"), "mine").unwrap();
    fs::create_dir(from.join("full")).unwrap();
    fs::write(from.join("full/thesis.txt"), "mine").unwrap();
    symlink("nowhere", from.join("link")).unwrap();
    for (out, why) in [
        ("file", "file is not a directory"),
        ("file/below", "is not a directory"),
        ("full", "full is not an empty directory"),
        ("link", "link is a symbolic link to nowhere, which does not exist"),
        ("/proc/evenkeel", "/proc/evenkeel"),
        ("/proc/self/task", "/proc/self/task"),
        ("/dev/null", "/dev/null is not a directory"),
    ] {
        assert_refused(&end(a_run(from, Some(out))), 2, why);
        let mut save = evenkeel(&["check", "--save", out]);
        save.current_dir(from);
        assert_refused(&end(save), 2, why);
        if out != "full" {
            let mut study = evenkeel(&[STUDY, &["--out", out]].concat());
            study.current_dir(from);
            assert_refused(&end(study), 2, "");
        }
    }
    assert_eq!(names(from), ["file", "full", "link"]);
    assert_eq!(names(&from.join("full")), ["thesis.txt"]);
}

#[test]
fn a_directory_without_the_right_to_write_is_refused_before_the_run() {
    use std::os::unix::process::CommandExt;
    let place = TempDir::new_in("/tmp").unwrap();
    let from = place.path().join("read-only");
    fs::create_dir(&from).unwrap();
    for path in [place.path(), &from] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    // Another user may not be able to enter the build directory.
    let program = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("evenkeel");
    copy_binary(&copy);
    for out in [None, Some("new"), Some(".")] {
        let mut command = Command::new(&copy);
        command.args(a_run(&from, out).get_args()).current_dir(&from).stdin(Stdio::null());
        if nix::unistd::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        assert_refused(&end(command), 2, "Permission denied");
    }
    assert_eq!(names(&from), Vec::<String>::new());
}

#[test]
fn a_deleted_current_directory_is_told() {
    let place = TempDir::new().unwrap();
    let script = "mkdir gone && cd gone && rmdir ../gone && exec \"$@\"";
    let run = [&["run", "titan-3-flows"], QUICK].concat();
    for arguments in [
        &run[..],
        &[&run[..], &["--out", "new"]].concat(),
        &["compare", "one", "other"],
        &["scenario", "check", "x.toml"],
        &["check", "--save", "host"],
        &["study", "tc", "--resume", "study"],
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_evenkeel")]).args(arguments);
        command.current_dir(place.path());
        assert_refused(&end(command), 2, "the current directory was deleted");
    }
}

#[test]
fn a_limit_of_open_files_is_no_wrong_argument() {
    let place = TempDir::new().unwrap();
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 4; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_evenkeel"),
        "check",
        "--save",
        "host",
    ]);
    command.current_dir(place.path());
    assert_refused(&end(command), 3, "`ulimit -n`");
    for limit in 5..9 {
        let study =
            "study tc --quick --on sim --quiet --scenario tc-latency --qdisc pfifo --repeats 1 --out study";
        let script = format!("ulimit -n {limit}; exec \"$0\" {study}-{limit}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_evenkeel")]).current_dir(place.path());
        let ended = end(command);
        assert!(matches!(ended.code, 0 | 3), "{limit}: {ended:?}");
        assert_eq!(ended.code == 3, ended.stderr.contains("Too many open files"), "{limit}: {ended:?}");
    }
}

/// Runs a command in this directory with a file size limit (RLIMIT_FSIZE) in blocks of 512 bytes.
fn limited(from: &Path, blocks: u32, arguments: &[&str]) -> Ended {
    let script = format!("ulimit -f {blocks}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_evenkeel")]).args(arguments);
    command.current_dir(from).stdin(Stdio::null());
    end(command)
}

#[test]
fn a_limit_of_the_file_size_is_told_like_a_full_disk() {
    let place = TempDir::new().unwrap();
    let run = [&["run", "titan-12-flows"], QUICK, &["--out", "one"]].concat();
    let study = [STUDY, &["--qdisc", "pfifo", "--repeats", "1", "--out", "two"]].concat();
    for arguments in [&run[..], &study, &["check", "--save", "host"]] {
        let ended = limited(place.path(), 1, arguments);
        assert!(ended.code == 4 && ended.stderr.contains("File too large"), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("`ulimit -f`"), "{arguments:?}: {ended:?}");
    }
    // The limit leaves room for the check before the run, but not for the record.
    let ended = limited(place.path(), 10, &run);
    assert!(ended.code == 4 && ended.stdout.contains("cmax"), "{ended:?}");
    assert!(
        ended.stderr.contains("File too large") && ended.stderr.contains("no record was written"),
        "{ended:?}"
    );
    assert_eq!(names(place.path()), Vec::<String>::new());
}

#[test]
fn a_result_that_cannot_be_printed_is_kept_and_its_place_is_told() {
    let place = TempDir::new().unwrap();
    let study = [STUDY, &["--qdisc", "pfifo", "--repeats", "1", "--quiet", "--out", "a\nstudy"]].concat();
    let run = [&["run", "titan-3-flows"], QUICK, &["--quiet", "--out", "a\nrecord"]].concat();
    for (arguments, told, kept) in [
        (run, "; the record is in a\\nrecord\n", "a\nrecord/record.json"),
        (study, "; the study is in ", "a\nstudy/study-result.json"),
    ] {
        let mut command = evenkeel(&arguments);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        command.current_dir(place.path()).stdout(full).stderr(Stdio::piped());
        let ended = ended(command.spawn().unwrap().wait_with_output().unwrap());
        assert!(ended.code == 4 && ended.stderr.contains(told), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "a path is on one line: {ended:?}");
        assert!(place.path().join(kept).exists(), "{kept}");
    }
    let mut save = evenkeel(&["check", "--save", "a\nhost"]);
    save.current_dir(place.path());
    assert!(end(save).stderr.contains(" files in a\\nhost; "));
}

#[test]
fn the_current_directory_stays_itself() {
    let place = TempDir::new().unwrap();
    let inode = fs::metadata(place.path()).unwrap().ino();
    let ended = end(a_run(place.path(), Some(".")));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(fs::metadata(place.path()).unwrap().ino(), inode);
    assert_eq!(names(place.path()), ["record.json", "series"]);
}

#[test]
fn of_two_runs_with_one_directory_one_is_refused_at_once() {
    let place = TempDir::new().unwrap();
    let long = ["run", "titan-48-flows", "--on", "sim", "--repeat", "100", "--out", "one"];
    let mut first = evenkeel(&long);
    first.current_dir(place.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = first.spawn().unwrap();
    let began = Instant::now();
    while !place.path().join("one").exists() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    let second = end(a_run(place.path(), Some("one")));
    assert_refused(&second, 2, "another process is writing to one");
    first.kill().unwrap();
    first.wait().unwrap();
    // The record directory of a killed run does not prevent another run.
    assert_eq!(end(a_run(place.path(), Some("one"))).code, 0);
}

#[test]
fn a_result_that_cannot_be_kept_is_printed() {
    let place = TempDir::new().unwrap();
    let run = ["run", "titan-3-flows", "--on", "sim", "--variant", "cmax", "--quick", "--repeat", "8"];
    let mut command = evenkeel(&[&run[..], &["--out", "one", "--format", "json"]].concat());
    command.current_dir(place.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The directory may be removed at any time. This test removes it at the first line of progress.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    // Repeat the removal, because the run may write a series at the same time.
    while place.path().join("one").exists() {
        let _ = fs::remove_dir_all(place.path().join("one"));
    }
    stderr.read_to_string(&mut said).unwrap();
    let ended = Ended { stderr: said, ..ended(child.wait_with_output().unwrap()) };
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.stderr.contains("the result was printed, but no record was written"), "{ended:?}");
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(json["variants"][0]["metrics"]["throughput_bps"]["mean"].is_number(), "{json}");
    assert_eq!(names(place.path()), Vec::<String>::new());
}

/// A study whose directory is removed while it runs fails as a run does.
#[test]
fn a_study_that_loses_its_directory_has_failed() {
    let place = TempDir::new().unwrap();
    // `tc-work-conservation` writes traces, so a write during the run fails. `tc-latency` writes none, so a
    // write of the result fails.
    for scenario in ["tc-work-conservation", "tc-latency"] {
        let study = ["study", "tc", "--on", "sim", "--quick", "--scenario", scenario];
        let mut command =
            evenkeel(&[&study[..], &["--qdisc", "pfifo", "--repeats", "10", "--out", "one"]].concat());
        command.current_dir(place.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let directory = place.path().join("one");
        while !directory.join("repeats.jsonl").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        while directory.exists() {
            let _ = fs::remove_dir_all(&directory);
        }
        let ended = ended(child.wait_with_output().unwrap());
        assert_eq!(ended.code, 4, "{ended:?}");
        assert_eq!(names(place.path()), Vec::<String>::new());
    }
}

#[test]
fn of_two_studies_that_begin_together_one_is_told_of_the_other() {
    let place = TempDir::new().unwrap();
    let start = |out: &[&str]| {
        let mut command = evenkeel(&[STUDY, &["--qdisc", "pfifo", "--repeats", "1"], out].concat());
        command.current_dir(place.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    for out in [&["--out", "one"][..], &[]] {
        let both = [start(out), start(out)].map(|child| ended(child.wait_with_output().unwrap()));
        for ended in &both {
            let told = ended.stderr.contains("another process is running the study in ");
            assert!(ended.code == 0 || (ended.code == 2 && told), "{both:?}");
        }
        assert!(both.iter().any(|ended| ended.code == 0), "{both:?}");
    }
}

/// Runs a command on a filesystem of 64 KiB with `free_kib` of free space, in a new mount namespace. Also
/// returns the names of the files that the command leaves.
#[cfg(feature = "netns-tests")]
fn on_a_full_disk(place: &Path, free_kib: u32, arguments: &[&str]) -> (Ended, Vec<String>) {
    let script = "mount -t tmpfs -o size=64k none \"$1\" && cd \"$1\" && free=$2 && shift 2 \
                  && dd if=/dev/zero of=ballast bs=1k count=$((64 - free)) status=none \
                  && \"$@\"; code=$?; echo; ls -A . ; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(place).arg(free_kib.to_string());
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).stdin(Stdio::null());
    let mut ended = end(command);
    let (output, left) = ended
        .stdout
        .rsplit_once("\n\n")
        .map_or((String::new(), ended.stdout.trim().to_owned()), |(output, left)| {
            (output.to_owned(), left.to_owned())
        });
    ended.stdout = output;
    (ended, left.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[cfg(feature = "netns-tests")]
#[test]
fn a_full_disk_is_told_before_the_run_or_after_the_result() {
    let place = TempDir::new().unwrap();
    let run = [&["run", "titan-12-flows"], QUICK, &["--out", "one"]].concat();
    let (ended, left) = on_a_full_disk(place.path(), 0, &run);
    assert_refused(&ended, 4, "No space left on device");
    assert_eq!(left, ["ballast"]);
    // The disk has room for the check before the run, but not for the record.
    let (ended, left) = on_a_full_disk(place.path(), 8, &run);
    assert!(ended.code == 4 && ended.stdout.contains("cmax"), "{ended:?}");
    assert!(ended.stderr.contains("no record was written"), "{ended:?}");
    assert_eq!(left, ["ballast"]);
    let (ended, left) = on_a_full_disk(place.path(), 0, &[STUDY, &["--out", "study"]].concat());
    assert_refused(&ended, 4, "No space left on device");
    assert_eq!(left, ["ballast"]);
    for free in [0, 12] {
        let (ended, left) = on_a_full_disk(place.path(), free, &["check", "--save", "host"]);
        assert!(ended.code == 4 && ended.stderr.contains("No space left on device"), "{ended:?}");
        assert_eq!(left, ["ballast"]);
    }
    let (ended, left) = on_a_full_disk(place.path(), 0, &["top", "lo", "--for", "1s", "--record", "one"]);
    assert_refused(&ended, 4, "no sample was recorded, and no file is left");
    assert_eq!(left, ["ballast"]);
    for what in ["man", "completions"] {
        let (ended, left) = on_a_full_disk(place.path(), 12, &["generate", what, "new/below"]);
        assert_refused(&ended, 4, "No space left on device");
        assert_eq!(left, ["ballast"]);
    }
}

/// `generate` refuses a file in place of its directory. It writes into a directory that contains other
/// files.
#[test]
fn pages_need_a_directory() {
    let place = TempDir::new().unwrap();
    fs::create_dir(place.path().join("full")).unwrap();
    fs::write(place.path().join("full/mine"), "x").unwrap();
    fs::write(place.path().join("file"), "x").unwrap();
    for what in ["man", "completions"] {
        let written = |to: &str| {
            let mut command = evenkeel(&["generate", what, to]);
            command.current_dir(place.path());
            end(command)
        };
        for to in ["file", "file/below"] {
            assert_refused(&written(to), 2, "file is not a directory; name a new directory");
        }
        for to in ["full", "new/below"] {
            assert_eq!(written(to).code, 0, "{to}");
        }
    }
    // Neither command needs a temporary directory. Both end with the same error if a file cannot be
    // written.
    for what in ["man", "completions"] {
        let mut command = evenkeel(&["generate", what, "new/below"]);
        command.current_dir(place.path()).env("TMPDIR", "/nonexistent");
        let ended = end(command);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_refused(&limited(place.path(), 0, &["generate", what, "new/below"]), 4, "File too large");
    }
    // A directory has the name of a page: no page is written.
    fs::create_dir_all(place.path().join("taken/evenkeel-top.1")).unwrap();
    let mut command = evenkeel(&["generate", "man", "taken"]);
    command.current_dir(place.path());
    assert_refused(&end(command), 2, "taken/evenkeel-top.1: ");
    assert_eq!(names(&place.path().join("taken")), ["evenkeel-top.1"]);
    fs::remove_dir_all(place.path().join("taken")).unwrap();
    // Opening a FIFO without a reader would block, so the command replaces the FIFO.
    let fifo = place.path().join("full/evenkeel.1");
    fs::remove_file(&fifo).unwrap();
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = evenkeel(&["generate", "man", "full"]);
    command.current_dir(place.path());
    let ended = end(command);
    assert!(ended.code == 0 && fs::symlink_metadata(&fifo).unwrap().is_file(), "{ended:?}");
    assert_eq!(names(place.path()), ["file", "full", "new"]);
    assert_eq!(names(&place.path().join("full")).len(), names(&place.path().join("new/below")).len() + 1);
}
