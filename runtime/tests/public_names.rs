//! Tests that a program can name the types of all public fields through the crate `kolo` alone.

use std::fmt;
use std::sync::Arc;

use kolo::{
    Board, Config, Determinism, Error, GpuDirectMode, JoinSpec, Liveness, Locator, RegistrationCache,
    ShmStores, TransportError, Transports, UniqueId,
};

#[test]
fn settings_have_public_types() {
    let Config { determinism, gdr, ib_cache, shm_stores, transports, .. } = Config::default();
    let _: (Determinism, GpuDirectMode, RegistrationCache) = (determinism, gdr, ib_cache);
    let _: (ShmStores, Transports) = (shm_stores, transports);
}

#[test]
fn a_rank_has_public_types() {
    #[derive(Debug)]
    struct Nowhere;

    impl Board for Nowhere {
        fn publish(&self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn read(&self) -> Result<Vec<u8>, String> {
            Err("nobody writes to it".to_owned())
        }

        fn name(&self) -> String {
            "nowhere".to_owned()
        }
    }

    let mut spec = JoinSpec::new(0, 2, Locator::Board(Arc::new(Nowhere)), "this test");
    spec.liveness = Liveness::default();
    let _: fn(&UniqueId, u32, u32) -> kolo::Result<JoinSpec> =
        |id, world_size, rank| id.join_spec(world_size, rank);
    assert_eq!(spec.world_size, 2);
}

#[test]
fn causes_have_public_types() {
    fn cause(error: &Error) -> Option<&(dyn fmt::Debug + 'static)> {
        match error {
            Error::Transport { source, .. } => {
                let source: &TransportError = source;
                Some(source)
            }
            _ => None,
        }
    }
    let error = JoinSpec::parse_url("nowhere").expect_err("it has no scheme");
    assert!(cause(&error).is_none());
}
