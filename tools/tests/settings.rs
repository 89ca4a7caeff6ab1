//! Commands that an error about the profile advises to run, in an environment that has such a profile.

mod common;

use std::path::Path;
use std::process::Output;

fn kolo(line: &str, profile: &Path) -> Output {
    common::kolo(line).env("KOLO_PROFILE", profile).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_profile_that_cannot_be_used_is_reported_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.toml");
    std::fs::write(&path, "version = 1\n").unwrap();
    let info = kolo("info --no-probe", &path);
    let said = text(&info.stdout);
    assert!(info.status.success() && said.contains("KOLO_PROFILE"), "{said}{}", text(&info.stderr));
    assert!(said.contains("kolo tune") && said.contains("profile.toml"), "{said}");

    let doctor = kolo("doctor", &path);
    let said = text(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(2), "{said}{}", text(&doctor.stderr));
    assert!(said.contains("refuse their settings") && said.contains("profile.toml"), "{said}");

    let tune = kolo(&format!("tune --out {}", path.display()), &path);
    assert!(tune.status.success(), "{}{}", text(&tune.stdout), text(&tune.stderr));
    assert!(kolo("doctor", &path).status.code() != Some(2), "the profile is good");
}
