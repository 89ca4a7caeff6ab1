//! The decision between the ways: its rules, and the questions that they ask of the drivers.

use super::path::{DmaBuf, Flush, Mode, Path, Plan, Refused, Ruled};

/// The answers of the drivers of a GPU and of the adapter beside it. An error is a reason in plain words.
pub trait Drivers {
    /// Checks that a GPU's driver is available.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    fn driver(&self) -> Result<(), String>;

    /// Checks that the GPU supports GPUDirect in any way.
    ///
    /// # Errors
    /// If it does not, as with consumer models and in virtual machines.
    fn gpu_direct(&self) -> Result<(), String>;

    /// Checks that the GPU's driver exports memory.
    ///
    /// # Errors
    /// If the driver is too old, or the device cannot.
    fn exports(&self, how: DmaBuf) -> Result<(), String>;

    /// Returns whether the GPU asks for a mapping for PCIe, because it shares a coherent link with the processor.
    fn wants_pcie(&self) -> bool;

    /// Checks that every adapter's driver and library register dma-bufs.
    ///
    /// # Errors
    /// Names one that does not.
    fn registers(&self) -> Result<(), String>;

    /// Checks that a module for peer memory is loaded.
    ///
    /// # Errors
    /// Names the module that was looked for.
    fn peer_memory(&self) -> Result<(), String>;

    /// Returns whether the GPU sees an adapter's writes in their order without a flush.
    fn orders_writes(&self) -> bool;

    /// Returns whether the driver has a call that flushes such writes, and the device supports it.
    fn flushes(&self) -> bool;
}

/// Chooses the way to reach a GPU's memory.
///
/// # Errors
/// If the adapter is required to reach the memory, and cannot.
pub fn decide(mode: Mode, drivers: &dyn Drivers) -> Result<Plan, Refused> {
    let mut ruled_out = Vec::new();
    if mode == Mode::Off {
        ruled_out.push(Ruled { way: "direct", because: "KOLO_GDR=off".to_owned() });
        return Ok(staged(ruled_out));
    }
    if let Err(because) = drivers.driver().and_then(|()| drivers.gpu_direct()) {
        // Without these, neither way exists.
        ruled_out.push(Ruled { way: "direct", because });
    } else {
        match dma_buf(drivers) {
            Ok(how) => return Ok(direct(Path::DmaBuf(how), drivers, ruled_out)),
            Err(because) => ruled_out.push(Ruled { way: "dma-buf", because }),
        }
        match drivers.peer_memory() {
            Ok(()) => return Ok(direct(Path::PeerMemory, drivers, ruled_out)),
            Err(because) => ruled_out.push(Ruled { way: "peer memory", because }),
        }
    }
    match mode {
        Mode::Require => Err(Refused { ruled_out }),
        Mode::Auto | Mode::Off => Ok(staged(ruled_out)),
    }
}

/// Chooses how memory is exported.
fn dma_buf(drivers: &dyn Drivers) -> Result<DmaBuf, String> {
    let how = match drivers.wants_pcie() && drivers.exports(DmaBuf::Pcie).is_ok() {
        true => DmaBuf::Pcie,
        // The default mapping works too, through the processor.
        false => drivers.exports(DmaBuf::Plain).map(|()| DmaBuf::Plain)?,
    };
    drivers.registers().map(|()| how)
}

fn direct(path: Path, drivers: &dyn Drivers, ruled_out: Vec<Ruled>) -> Plan {
    let flush = match (drivers.orders_writes(), drivers.flushes()) {
        (true, _) => Flush::NotNeeded,
        (false, true) => Flush::Driver,
        (false, false) => Flush::ReadBack,
    };
    Plan { path, flush, ruled_out }
}

fn staged(ruled_out: Vec<Ruled>) -> Plan {
    // The GPU itself copies from the host, and its copies are ordered.
    Plan { path: Path::Staged, flush: Flush::NotNeeded, ruled_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in which everything works, except what a field names.
    #[derive(Clone, Default)]
    struct Fake {
        no_driver: bool,
        no_gpu_direct: bool,
        no_export: bool,
        no_export_for_pcie: bool,
        coherent: bool,
        no_registering: bool,
        no_peer_memory: bool,
        ordered: bool,
        no_flush: bool,
    }

    fn unless(lacking: bool, because: &str) -> Result<(), String> {
        if lacking { Err(because.to_owned()) } else { Ok(()) }
    }

    impl Drivers for Fake {
        fn driver(&self) -> Result<(), String> {
            unless(self.no_driver, "no libcuda")
        }
        fn gpu_direct(&self) -> Result<(), String> {
            unless(self.no_gpu_direct, "not this model")
        }
        fn exports(&self, how: DmaBuf) -> Result<(), String> {
            match how {
                DmaBuf::Plain => unless(self.no_export, "old driver"),
                DmaBuf::Pcie => unless(self.no_export_for_pcie, "driver before 12.8"),
            }
        }
        fn wants_pcie(&self) -> bool {
            self.coherent
        }
        fn registers(&self) -> Result<(), String> {
            unless(self.no_registering, "rxe0 takes none")
        }
        fn peer_memory(&self) -> Result<(), String> {
            unless(self.no_peer_memory, "nvidia_peermem is not loaded")
        }
        fn orders_writes(&self) -> bool {
            self.ordered
        }
        fn flushes(&self) -> bool {
            !self.no_flush
        }
    }

    fn taken(mode: Mode, table: &Fake) -> (Path, Flush, String) {
        let plan = decide(mode, table).expect("not refused");
        (plan.path, plan.flush, plan.to_string())
    }

    #[test]
    fn dma_bufs_come_first() {
        for mode in [Mode::Auto, Mode::Require] {
            let (path, flush, text) = taken(mode, &Fake::default());
            assert_eq!((path, flush), (Path::DmaBuf(DmaBuf::Plain), Flush::Driver));
            assert_eq!(text, "dma-buf; flushed by the GPU driver");
        }
    }

    #[test]
    fn coherent_gpus_are_mapped_for_pcie_where_the_driver_can() {
        let table = Fake { coherent: true, ..Fake::default() };
        assert_eq!(taken(Mode::Auto, &table).0, Path::DmaBuf(DmaBuf::Pcie));
        let table = Fake { no_export_for_pcie: true, ..table };
        assert_eq!(taken(Mode::Auto, &table).0, Path::DmaBuf(DmaBuf::Plain));
        let table = Fake { no_export_for_pcie: true, ..Fake::default() };
        assert_eq!(taken(Mode::Auto, &table).0, Path::DmaBuf(DmaBuf::Plain), "nobody asked for it");
    }

    #[test]
    fn flushing_is_left_out_only_where_writes_are_ordered() {
        let ordered = Fake { ordered: true, no_flush: true, ..Fake::default() };
        assert_eq!(taken(Mode::Auto, &ordered).1, Flush::NotNeeded);
        let (_, flush, text) = taken(Mode::Auto, &Fake { no_flush: true, ..Fake::default() });
        assert_eq!((flush, text.as_str()), (Flush::ReadBack, "dma-buf; flushed by reading back"));
    }

    #[test]
    fn peer_memory_comes_second_with_the_reason() {
        for (table, reason) in [
            (Fake { no_export: true, ..Fake::default() }, "not dma-buf: old driver"),
            (Fake { no_registering: true, ..Fake::default() }, "not dma-buf: rxe0 takes none"),
            (
                Fake { no_export: true, coherent: true, no_export_for_pcie: true, ..Fake::default() },
                "old driver",
            ),
        ] {
            for mode in [Mode::Auto, Mode::Require] {
                let (path, flush, text) = taken(mode, &table);
                assert_eq!((path, flush), (Path::PeerMemory, Flush::Driver));
                assert!(text.starts_with("peer memory; ") && text.ends_with(reason), "{text}");
            }
        }
    }

    #[test]
    fn staging_comes_last_with_all_reasons_and_is_refused_on_demand() {
        let cases = [
            (Fake { no_driver: true, ..Fake::default() }, "not direct: no libcuda"),
            (Fake { no_gpu_direct: true, ..Fake::default() }, "not direct: not this model"),
            (
                Fake { no_registering: true, no_peer_memory: true, ..Fake::default() },
                "not dma-buf: rxe0 takes none; not peer memory: nvidia_peermem is not loaded",
            ),
        ];
        for (table, reasons) in cases {
            let (path, flush, text) = taken(Mode::Auto, &table);
            assert_eq!((path, flush), (Path::Staged, Flush::NotNeeded));
            assert_eq!(text, format!("staged through pinned host memory; {reasons}"));
            let text = decide(Mode::Require, &table).expect_err("refused").to_string();
            assert_eq!(
                text,
                format!("KOLO_GDR=require is set, but the adapter cannot reach the GPU's memory; {reasons}")
            );
        }
    }

    #[test]
    fn off_is_off() {
        let (path, _, text) = taken(Mode::Off, &Fake::default());
        assert_eq!(
            (path, text.as_str()),
            (Path::Staged, "staged through pinned host memory; not direct: KOLO_GDR=off")
        );
        for mode in [Mode::Auto, Mode::Require, Mode::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("on".parse::<Mode>(), Err("auto, require or off"));
    }
}
