//! Settings as text: the name of each setting, and its value in the form that a user writes.

use kolo_transport::rdma::Keep;

use super::{Config, Determinism, Transports};

/// A setting's name and value. The value is `None` if the choice is left to Kolo.
pub(crate) type Setting = (&'static str, Option<String>);

impl Config {
    /// Returns every setting with its value, one per line, as `KOLO_NAME=value`.
    #[must_use]
    pub fn settings(&self) -> String {
        let left_to_us = |name: &str| match name {
            "KOLO_PROFILE" => "(built-in constants)",
            "KOLO_PLAN" => "(plans of generators)",
            "KOLO_JOB_SECRET" => "(not shown)",
            _ => "(chosen at run time)",
        };
        let line = |(name, value): Setting| {
            let value = value.unwrap_or_else(|| left_to_us(name).to_owned());
            format!("{name}={value}\n")
        };
        self.rows().into_iter().map(line).collect()
    }

    fn plan_paths(&self) -> String {
        let paths: Vec<String> = self.plans.iter().map(|plans| plans.path.display().to_string()).collect();
        paths.join(",")
    }

    /// All settings.
    pub(crate) fn rows(&self) -> [Setting; 36] {
        let transports = match &self.transports {
            Transports::Auto => "auto".to_owned(),
            Transports::Only(list) => list.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(","),
        };
        let determinism = match self.determinism {
            Determinism::Repeatable => "repeatable",
            Determinism::Canonical => "canonical",
        };
        let cache = match self.ib_cache {
            Keep::Watched => "watched",
            Keep::Never => "never",
            Keep::Always => "always",
        };
        let number = |value: Option<usize>| value.map(|number| number.to_string());
        [
            ("KOLO_TRANSPORT", Some(transports)),
            ("KOLO_ALGO", Some(self.algorithms.clone()).filter(|names| !names.is_empty())),
            ("KOLO_DETERMINISM", Some(determinism.to_owned())),
            ("KOLO_TIMEOUT", Some(self.timeout.as_secs_f64().to_string())),
            ("KOLO_JOIN_TIMEOUT", Some(self.join_timeout.as_secs_f64().to_string())),
            ("KOLO_SILENT_AFTER", Some(self.silent_after.as_secs_f64().to_string())),
            ("KOLO_HOST_ID", self.host_id.clone()),
            ("KOLO_SOCKET_IFNAME", self.socket_interfaces.clone()),
            (
                "KOLO_PORT_RANGE",
                self.port_range.as_ref().map(|ports| format!("{}-{}", ports.start(), ports.end())),
            ),
            ("KOLO_SOCKET_CONGESTION", self.socket_congestion.clone()),
            ("KOLO_SOCKET_STREAMS", self.socket_streams.map(|streams| streams.to_string())),
            ("KOLO_SOCKET_PACING", Some(if self.socket_pacing { "auto" } else { "off" }.to_owned())),
            ("KOLO_IB_HCA", self.ib_adapters.clone()),
            ("KOLO_IB_GID_INDEX", self.ib_gid_index.map(|index| index.to_string())),
            ("KOLO_IB_TC", Some(self.ib_traffic_class.to_string())),
            ("KOLO_IB_SL", Some(self.ib_service_level.to_string())),
            ("KOLO_IB_QPS", Some(self.ib_queue_pairs.to_string())),
            ("KOLO_GDR", Some(self.gdr.to_string())),
            ("KOLO_CUDA_LIBRARY", self.cuda_library.clone()),
            ("KOLO_IB_CACHE", Some(cache.to_owned())),
            ("KOLO_SHM_STORES", Some(self.shm_stores.to_string())),
            ("KOLO_SHM_SINGLE_COPY", Some(if self.shm_single_copy { "auto" } else { "off" }.to_owned())),
            ("KOLO_IBVERBS_LIB", self.ib_library.clone()),
            ("KOLO_SEGMENT_BYTES", number(self.segment_bytes)),
            ("KOLO_WINDOW", number(self.window)),
            ("KOLO_EXCHANGE_BYTES", number(self.exchange_bytes)),
            ("KOLO_ONE_SHOT_BYTES", number(self.one_shot_bytes)),
            ("KOLO_SYMMETRIC_BYTES", number(self.symmetric_bytes)),
            ("KOLO_UNEXPECTED_BYTES", Some(self.unexpected_bytes.to_string())),
            ("KOLO_SPIN_US", self.spin.map(|time| time.as_micros().to_string())),
            ("KOLO_SHORT_SLICES", Some(if self.short_slices { "auto" } else { "off" }.to_owned())),
            ("KOLO_RELAY", Some(if self.relay { "auto" } else { "off" }.to_owned())),
            ("KOLO_NETWORK_PROBE", Some(if self.network_probe { "auto" } else { "off" }.to_owned())),
            ("KOLO_PROFILE", self.profile.as_ref().map(|loaded| loaded.path.display().to_string())),
            ("KOLO_PLAN", Some(self.plan_paths()).filter(|paths| !paths.is_empty())),
            ("KOLO_JOB_SECRET", None),
        ]
    }
}
