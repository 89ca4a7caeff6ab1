//! Tests tensors of all types, and that several ranks train a model with the same result as one rank.

use candle_core::{D, DType, Device, IndexOp, Result as Outcome, Tensor, Var};
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss, seq};
use kolo::{Cluster, Communicator, ReduceOp};
use kolo_candle::{
    Error, all_gather, all_reduce, all_reduce_gradients, broadcast, broadcast_vars, ordered_vars,
};

const RANKS: u32 = 3;
const IMAGES: usize = 24;
const TYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

fn on_ranks<R: Send>(act: impl Fn(&Communicator) -> kolo_candle::Result<R> + Sync) -> Vec<R> {
    let returned = Cluster::local(RANKS, |comm| act(&comm)).expect("all ranks join");
    returned.into_iter().map(|result| result.expect("every rank succeeds")).collect()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64)?.to_vec1()).expect("any tensor")
}

#[test]
fn tensors_of_all_types_and_layouts() {
    for dtype in TYPES {
        on_ranks(|comm| {
            let rank = f64::from(comm.rank());
            // Transposed, so that its elements are not contiguous.
            let own = Tensor::arange(0_f64, 6.0, &Device::Cpu)?
                .affine(1.0, rank)?
                .to_dtype(dtype)?
                .reshape((2, 3))?
                .t()?;
            let sum = all_reduce(comm, &own, ReduceOp::Sum)?;
            assert_eq!((sum.dims(), sum.dtype()), (&[3, 2][..], dtype));
            assert_eq!(values(&sum), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0].map(|x| 3.0 * x + 3.0), "{dtype:?}");
            let roots = broadcast(comm, &own, 1)?;
            assert_eq!(values(&roots), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0].map(|x| x + 1.0), "{dtype:?}");
            let all = all_gather(comm, &own)?;
            assert_eq!(all.dims(), [9, 2]);
            for rank in 0..3 {
                let theirs = values(&all.i(3 * rank..3 * rank + 3)?);
                assert_eq!(theirs, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0].map(|x| x + rank as f64), "{dtype:?}");
            }
            Ok(())
        });
    }
}

#[test]
fn what_cannot_be_sent_is_an_error() {
    on_ranks(|comm| {
        let odd = Tensor::zeros(4, DType::F8E4M3, &Device::Cpu)?;
        let refused = all_reduce(comm, &odd, ReduceOp::Sum).expect_err("Kolo has no such type");
        assert!(matches!(refused, Error::DType(DType::F8E4M3)), "{refused}");
        assert!(refused.to_string().contains("to_dtype"), "{refused}");
        let single = Tensor::new(1_f32, &Device::Cpu)?;
        assert!(matches!(all_gather(comm, &single), Err(Error::Candle(_))), "no dimension to gather along");
        assert_eq!(values(&all_reduce(comm, &single, ReduceOp::Sum)?), [3.0], "and the group goes on");
        let short = Tensor::zeros(1 + comm.rank() as usize, DType::F32, &Device::Cpu)?;
        let mismatch = all_reduce(comm, &short, ReduceOp::Sum).expect_err("lengths differ");
        let of_kolo =
            matches!(&mismatch, Error::Kolo(kolo::Error::Mismatch { .. } | kolo::Error::Aborted { .. }));
        assert!(of_kolo && mismatch.to_string().contains("x f32"), "{mismatch}");
        Ok(())
    });
}

fn samples() -> Outcome<(Tensor, Tensor)> {
    let inputs = Tensor::arange(0_f32, (IMAGES * 8) as f32, &Device::Cpu)?.sin()?.reshape((IMAGES, 8))?;
    let labels = Tensor::arange(0_u32, IMAGES as u32, &Device::Cpu)?;
    let labels = (labels.to_dtype(DType::F32)? * 0.37)?.to_dtype(DType::U32)?.clamp(0_u32, 3_u32)?;
    Ok((inputs, labels))
}

/// Returns the weights after some steps on this rank's samples. `reduce` is called between `backward` and the optimizer's step.
fn train(
    (from, many): (usize, usize),
    start: impl Fn(&[Var]) -> kolo_candle::Result<()>,
    reduce: impl Fn(&mut candle_core::backprop::GradStore, &[Var]) -> kolo_candle::Result<()>,
) -> kolo_candle::Result<Vec<f64>> {
    let (inputs, labels) = samples()?;
    let (inputs, labels) = (inputs.narrow(0, from, many)?, labels.narrow(0, from, many)?);
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let model = seq().add(linear(8, 16, builder.pp("first"))?).add_fn(|x| x.relu()).add(linear(
        16,
        4,
        builder.pp("second"),
    )?);
    // No sample uses this variable, so it has no gradient.
    let idle = builder.get_with_hints((5, 3), "idle", candle_nn::init::ZERO)?;
    let vars = ordered_vars(&map);
    for (seed, var) in vars.iter().enumerate() {
        let many = var.elem_count();
        let fixed = Tensor::arange(0_f32, many as f32, &Device::Cpu)?.affine(1.3, seed as f64)?.sin()?;
        var.set(&(fixed.reshape(var.shape())? * 0.3)?)?;
    }
    start(&vars)?;
    let idle_before = values(&idle);
    let mut optimizer = SGD::new(vars.clone(), 0.2)?;
    for _ in 0..20 {
        let mut gradients = loss::cross_entropy(&model.forward(&inputs)?, &labels)?.backward()?;
        reduce(&mut gradients, &vars)?;
        assert!(gradients.get(&idle).is_none(), "an optimizer with weight decay would change it");
        optimizer.step(&gradients)?;
    }
    assert_eq!(values(&idle), idle_before, "a variable without a gradient stays as it is");
    Ok(vars.iter().flat_map(|var| values(var)).collect())
}

#[test]
fn several_ranks_train_as_one_does() {
    let alone = train((0, IMAGES), |_| Ok(()), |_, _| Ok(())).expect("a rank on its own");
    let each = IMAGES / RANKS as usize;
    let together = on_ranks(|comm| {
        let start = |vars: &[Var]| {
            if comm.rank() > 0 {
                for var in vars {
                    var.set(&var.zeros_like()?)?;
                }
            }
            broadcast_vars(comm, vars, 0)
        };
        train((comm.rank() as usize * each, each), start, |gradients, vars| {
            all_reduce_gradients(comm, gradients, vars, ReduceOp::Avg)
        })
    });
    assert!(together.iter().all(|weights| *weights == together[0]), "all ranks have the same bits");
    let furthest = alone.iter().zip(&together[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(furthest < 1e-5, "{furthest}");
    let moved = alone.iter().map(|x| x.abs()).sum::<f64>();
    assert!(moved > 1.0, "it has learned something: {moved}");
}

#[test]
fn gradients_of_several_types_go_in_buckets_of_their_own() {
    on_ranks(|comm| {
        let vars: Vec<Var> = [(DType::F32, 3_usize << 20), (DType::F32, 7), (DType::F64, 5), (DType::F32, 2)]
            .iter()
            .map(|(dtype, count)| Var::zeros(*count, *dtype, &Device::Cpu))
            .collect::<Outcome<_>>()?;
        let mut gradients = Tensor::new(1_f32, &Device::Cpu)?.backward()?;
        for (index, var) in vars.iter().enumerate().filter(|(index, _)| *index != 3 || comm.rank() == 2) {
            let value = f64::from(comm.rank()) + index as f64;
            gradients
                .insert(var, Tensor::full(value as f32, var.shape(), &Device::Cpu)?.to_dtype(var.dtype())?);
        }
        all_reduce_gradients(comm, &mut gradients, &vars, ReduceOp::Sum)?;
        for (index, var) in vars.iter().enumerate() {
            let sum = gradients.get(var).expect("all have one now");
            let expected = if index == 3 { 5.0 } else { 3.0 + 3.0 * index as f64 };
            assert_eq!((sum.dtype(), sum.dims()), (var.dtype(), var.dims()));
            assert_eq!(
                sum.to_dtype(DType::F64)?.min(D::Minus1)?.to_scalar::<f64>()?,
                expected,
                "variable {index}"
            );
            assert_eq!(
                sum.to_dtype(DType::F64)?.max(D::Minus1)?.to_scalar::<f64>()?,
                expected,
                "variable {index}"
            );
        }
        Ok(())
    });
}
