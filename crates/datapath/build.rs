//! Compiles the BPF programs with clang, and generates the Rust types of the shared header.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 6] = ["queue_select", "meter", "batch", "steer", "drops", "lola"];
/// Programs that are also compiled for kernels without `bpf_cast_to_kern_ctx` (`EK_PROBED` in
/// kernel.h).
const PROBED: [&str; 2] = ["queue_select", "meter"];

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    for path in ["bpf", "include"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    let variable =
        |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: build with cargo"));
    let out = PathBuf::from(variable("OUT_DIR")?);
    let includes = [
        PathBuf::from("include"),
        PathBuf::from(variable("DEP_EVENKEEL_TRANSMIT_INCLUDE")?),
        PathBuf::from(variable("DEP_BPF_INCLUDE")?),
    ];
    for program in PROGRAMS {
        compile(program, false, &includes, &out)?;
    }
    for program in PROBED {
        compile(program, true, &includes, &out)?;
    }

    let mut builder = bindgen::Builder::default()
        .header("include/evenkeel/datapath.h")
        .header("include/evenkeel/steer.h")
        .allowlist_type(
            "ek_(config|counters|device|drop|flow|flow_detail|tuple|metered_flow|bin|meter|steering)",
        )
        .allowlist_type("ek_(rule|match|batch_config|batch_counters|move|move_state|service|service_flag)")
        .allowlist_type("ek_lola_(flow|counters)")
        .allowlist_type("ek_steer(_config|_slot|_class|_rules|_cpu|_seen|_target)?")
        .allowlist_var("EK_MAX_CPUS|EK_MAX_FLOWS|EK_SLOTS|EK_SLOTS_PER_BLOCK|EK_MAX_BLOCKS|EK_MAX_RULES")
        .allowlist_var("EK_MAX_SERVICES|EK_MOVE_.*|EK_SERVICE_.*")
        .allowlist_var(
            "EK_MATCH_.*|EK_STEER_(SLOTS|CLASSES|CLASS_TARGETS|INDIRECTION|HASH_INPUT)|EK_BATCH_MAX_PACKETS",
        )
        .blocklist_type("ek_(policy|segment|choice|outcome)")
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true);
    for include in &includes {
        builder = builder.clang_arg(format!("-I{}", include.display()));
    }
    builder
        .generate()
        .map_err(|error| format!("bindgen: {error}"))?
        .write_to_file(out.join("datapath.rs"))
        .map_err(|error| format!("{}: {error}", out.display()))
}

fn compile(program: &str, probed: bool, includes: &[PathBuf], out: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let mut command = Command::new(&clang);
    command.args(["-g", "-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c"]);
    command.args(["-Wno-unused-parameter", "-Wno-address-of-packed-member", "-D__bpf__"]);
    // linux/types.h includes asm/types.h. Debian and Ubuntu install it in a directory per architecture. It is
    // the same for all 64-bit architectures, so a build for another architecture takes that of this machine.
    command.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let kernel_name = match architecture.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        "riscv64" => "riscv",
        other => other,
    };
    command.arg(format!("-D__TARGET_ARCH_{kernel_name}"));
    // Replace the path of the workspace, so that the objects do not depend on the build directory.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = workspace.canonicalize().map_err(|error| format!("{}: {error}", workspace.display()))?;
    command.arg(format!("-ffile-prefix-map={}=/evenkeel", workspace.display()));
    for include in includes {
        command.arg("-I").arg(include);
    }
    let object = if probed { format!("{program}_probed") } else { program.to_owned() };
    if probed {
        command.arg("-DEK_PROBED");
    }
    command.arg(format!("bpf/{program}.bpf.c")).arg("-o").arg(out.join(format!("{object}.bpf.o")));
    let output = command.output().map_err(|error| {
        format!("cannot run {clang}: {error}; clang compiles the BPF programs: run ./dev setup, or set CLANG")
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "clang refused bpf/{program}.bpf.c: {}",
        String::from_utf8_lossy(&output.stderr).replace('\n', " | ")
    ))
}
