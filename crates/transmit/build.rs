//! Compiles the shared C headers for user space, and generates Rust types from them.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rerun-if-changed=csrc/shim.c");
    // The crates of the BPF programs find the headers through DEP_EVENKEEL_TRANSMIT_INCLUDE.
    let include = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("include");
    println!("cargo::metadata=include={}", include.display());

    cc::Build::new().file("csrc/shim.c").include("include").opt_level(3).compile("evenkeel_transmit");

    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("shim.rs");
    let bindings = bindgen::Builder::default()
        .header("csrc/shim.c")
        .clang_arg("-Iinclude")
        .allowlist_type("ek_.*")
        .allowlist_var("EK_.*")
        .allowlist_function("ek_shim_.*")
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .layout_tests(true)
        .derive_default(true)
        .generate();
    match bindings {
        Ok(bindings) => {
            if let Err(error) = bindings.write_to_file(&out) {
                println!("cargo::error=cannot write {}: {error}", out.display());
            }
        }
        Err(error) => println!("cargo::error=bindgen cannot read csrc/shim.c: {error}"),
    }
}
