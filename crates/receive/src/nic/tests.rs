#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

#[test]
fn the_built_in_models_are_sound() {
    for name in NicModel::built_in_names() {
        let text = NicModel::built_in_text(name).unwrap();
        let model = NicModel::parse(text, name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.name(), name);
        let least = model.queues_least();
        assert!(ConfiguredNic::new(&model, least).is_ok(), "{name}");
    }
}
