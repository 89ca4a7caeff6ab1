//! The engine of Kolo's MPI libraries: everything except the numbers and layouts of an ABI, which front ends add.
//!
//! The functions of [`calls`] have the standard's names and arguments. They use the numbers of the MPICH ABI ([`constants`]), take
//! all counts as 64-bit numbers, and return a [`Fail`](error::Fail) where the standard has an error code.
//!
//! # Safety
//! Arguments of calls are as valid as the standard demands of those of the C functions, and pointers are not null where the front ends
//! check that. SAFETY comments call this the caller's promise.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::not_unsafe_ptr_arg_deref,
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    clippy::too_many_arguments,
    reason = "calls are documented by the MPI standard: their arguments are those of the C functions, and as valid"
)]

pub mod args;
mod attributes;
mod bsend;
mod collective;
mod comm;
pub mod constants;
mod datatype;
pub mod error;
mod file;
pub mod flavor;
mod group;
mod handle;
mod handlers;
mod hints;
mod info;
mod long_double;
mod message;
mod net;
mod numbers;
mod op;
mod partitioned;
mod request;
mod session;
mod staging;
mod status;
mod tools;
mod topology;
mod window;
mod world;

/// All calls, by the standard's names in lower case.
pub mod calls {
    pub use crate::attributes::*;
    pub use crate::bsend::*;
    pub use crate::collective::{
        allgather, allgatherv, allreduce, alltoall, alltoallv, alltoallw, barrier, bcast, exscan, gather,
        gatherv, neighbor_allgather, neighbor_allgatherv, neighbor_alltoall, neighbor_alltoallv,
        neighbor_alltoallw, reduce, reduce_scatter, reduce_scatter_block, scan, scatter, scatterv,
    };
    pub use crate::comm::{
        comm_agree, comm_compare, comm_create, comm_create_group, comm_disconnect, comm_dup,
        comm_dup_with_info, comm_failure_ack, comm_failure_get_acked, comm_free, comm_get_failed,
        comm_get_info, comm_get_name, comm_get_parent, comm_idup, comm_idup_with_info, comm_is_revoked,
        comm_rank, comm_remote_group, comm_remote_size, comm_revoke, comm_set_info, comm_set_name,
        comm_shrink, comm_size, comm_split, comm_split_type, comm_test_inter, intercomm_create,
        intercomm_merge,
    };
    pub use crate::datatype::*;
    pub use crate::file::{
        file_close, file_delete, file_get_amode, file_get_atomicity, file_get_byte_offset, file_get_group,
        file_get_info, file_get_position, file_get_position_shared, file_get_size, file_get_type_extent,
        file_get_view, file_iread, file_iread_all, file_iread_at, file_iread_at_all, file_iread_shared,
        file_iwrite, file_iwrite_all, file_iwrite_at, file_iwrite_at_all, file_iwrite_shared, file_open,
        file_preallocate, file_read, file_read_all, file_read_all_begin, file_read_all_end, file_read_at,
        file_read_at_all, file_read_at_all_begin, file_read_at_all_end, file_read_ordered,
        file_read_ordered_begin, file_read_ordered_end, file_read_shared, file_seek, file_seek_shared,
        file_set_atomicity, file_set_info, file_set_size, file_set_view, file_sync, file_write,
        file_write_all, file_write_all_begin, file_write_all_end, file_write_at, file_write_at_all,
        file_write_at_all_begin, file_write_at_all_end, file_write_ordered, file_write_ordered_begin,
        file_write_ordered_end, file_write_shared, register_datarep,
    };
    pub use crate::group::{
        comm_group, group_compare, group_difference, group_excl, group_free, group_incl, group_intersection,
        group_range_excl, group_range_incl, group_rank, group_size, group_translate_ranks, group_union,
    };
    pub use crate::handlers::*;
    pub use crate::info::*;
    pub use crate::message::*;
    pub use crate::op::{op_commutative, op_create, op_create_c, op_create_x, op_free, reduce_local};
    pub use crate::partitioned::*;
    pub use crate::request::*;
    pub use crate::session::{
        comm_create_from_group, group_from_session_pset, intercomm_create_from_groups, session_finalize,
        session_get_info, session_get_nth_pset, session_get_num_psets, session_get_pset_info, session_init,
    };
    pub use crate::status::*;
    pub use crate::tools::*;
    pub use crate::topology::*;
    pub use crate::window::{
        accumulate, compare_and_swap, fetch_and_op, get, get_accumulate, put_call, raccumulate, rget,
        rget_accumulate, rput, win_allocate, win_allocate_shared, win_attach, win_complete, win_create,
        win_create_dynamic, win_detach, win_fence, win_flush, win_flush_all, win_flush_local,
        win_flush_local_all, win_free, win_get_group, win_get_info, win_get_name, win_lock, win_lock_all,
        win_post, win_set_info, win_set_name, win_shared_query, win_start, win_sync, win_test, win_unlock,
        win_unlock_all, win_wait,
    };
    pub use crate::world::*;
}

pub use collective::How;
pub use comm::size_of_comm;
pub use handlers::{Scope, finish};
pub use topology::degrees;
pub use world::{wtick, wtime};
