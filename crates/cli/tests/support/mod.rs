//! Runs the binary. Each test binary uses only a part of this module.

#![allow(dead_code)]

#[cfg(feature = "netns-tests")]
pub mod foreign_program;
#[cfg(feature = "netns-tests")]
#[path = "../../../testbed/tests/support/leftovers.rs"]
pub mod leftovers;
#[cfg(feature = "netns-tests")]
pub mod managed;
#[cfg(feature = "netns-tests")]
pub mod running;
#[cfg(feature = "netns-tests")]
pub mod service;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub fn names(place: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(place).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Returns a command of the binary with these arguments. Removes variables that request backtraces, log
/// messages or colours from its environment.
pub fn evenkeel<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["RUST_BACKTRACE", "RUST_LOG", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command until it ends. Checks that it did not panic.
pub fn end(mut command: Command) -> Ended {
    ended(command.output().unwrap())
}

pub fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Ended {
    end(evenkeel(arguments))
}

/// Copies the binary, for a user who cannot enter the build directory. Another process writes the copy.
/// Otherwise a child of another test could inherit this process's descriptor, and then the copy could
/// not be executed (`ETXTBSY`).
pub fn copy_binary(to: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("--remove-destination").arg(env!("CARGO_BIN_EXE_evenkeel")).arg(to);
    assert!(copy.status().expect("cp starts").success());
}

pub fn ended(output: Output) -> Ended {
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    let ended = Ended {
        code: output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}")),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    };
    for trace in ["panicked", "RUST_BACKTRACE", "unwrap()"] {
        assert!(!ended.stderr.contains(trace) && !ended.stdout.contains(trace), "{ended:?}");
    }
    assert_ne!(ended.code, 101, "{ended:?}");
    ended
}

pub fn file(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Makes the command run without any capability, whether it runs as root or as another user.
pub fn without_capabilities(command: &mut Command) {
    without(command, 0..64);
}

/// Makes the command run without these capabilities (by number, capability.h), even as root. Executing
/// a program gains no capability outside the bounding set (capabilities(7)).
pub fn without(command: &mut Command, capabilities: impl IntoIterator<Item = libc::c_ulong>) {
    use std::os::unix::process::CommandExt;
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let capabilities: Vec<libc::c_ulong> = capabilities.into_iter().collect();
    // SAFETY: the closure only makes system calls, on memory that the fork copied.
    unsafe {
        command.pre_exec(move || {
            for capability in &capabilities {
                // The kernel refuses unknown capability numbers with EINVAL.
                if libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) < 0
                    && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
                {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// Returns a pipe that takes no more bytes.
pub fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let set_flags = |flags: libc::c_int| {
        // SAFETY: the call sets flags of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    set_flags(libc::O_NONBLOCK);
    let full = std::iter::repeat_with(|| (&writer).write(&[b'x'; 4096])).find_map(Result::err).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    set_flags(0);
    writer.flush().unwrap();
    (reader, writer)
}
