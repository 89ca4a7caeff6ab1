//! What an operation is given to do.

use std::any::Any;
use std::sync::Arc;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::Plan;

use super::super::memory::Buffers;
use super::super::sides::Sides;
use crate::reduce::Combine;
use crate::types::DataType;

/// Everything needed to start an operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) buffers: Buffers,
    pub(crate) sides: Sides,
    pub(crate) data_type: DataType,
    pub(crate) combine: Combine,
    /// Factor of PremulSum.
    pub(crate) premultiply: Option<f64>,
    /// Divisor of Avg.
    pub(crate) divide_by: Option<u32>,
    pub(crate) segment_elements: usize,
    pub(crate) window: usize,
    /// First of the transport channels that this operation may use.
    pub(crate) channel_base: u16,
    pub(crate) tag: u64,
    /// Memory that must live as long as the operation runs.
    pub(crate) keep: Option<Box<dyn Any + Send>>,
}
