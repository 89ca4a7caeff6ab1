//! Tests tensors, and that several ranks train a model with the same result as one rank.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::quantization::QuantScheme;
use burn::tensor::{DType, Device, Tensor};
use kolo::{Cluster, Communicator, ReduceOp};
use kolo_burn::{Error, all_gather, all_reduce, all_reduce_gradients, broadcast, broadcast_module};

const RANKS: u32 = 3;
const SAMPLES: usize = 24;

fn on_ranks<R: Send>(act: impl Fn(&Communicator) -> kolo_burn::Result<R> + Sync) -> Vec<R> {
    let returned = Cluster::local(RANKS, |comm| act(&comm)).expect("all ranks join");
    returned.into_iter().map(|result| result.expect("every rank succeeds")).collect()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(DType::F32).into_data().try_to_vec().expect("it is f32")
}

#[test]
fn tensors_of_all_types() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        on_ranks(|comm| {
            let rank = comm.rank() as f32;
            let own = Tensor::<2>::from_data([[rank, rank + 1.0], [rank + 2.0, 7.0]], &Device::default())
                .cast(dtype)
                .transpose();
            let sum = all_reduce(comm, own.clone(), ReduceOp::Sum)?;
            assert_eq!((sum.dims(), sum.dtype()), ([2, 2], dtype));
            assert_eq!(values(sum), [3.0, 9.0, 6.0, 21.0], "{dtype:?}");
            assert_eq!(values(broadcast(comm, own.clone(), 2)?), [2.0, 4.0, 3.0, 7.0], "{dtype:?}");
            let all = all_gather(comm, own)?;
            assert_eq!(all.dims(), [6, 2]);
            let expected =
                (0..3).flat_map(|rank| [0.0, 2.0, 1.0].map(|x| x + rank as f32).into_iter().chain([7.0]));
            assert_eq!(values(all), expected.collect::<Vec<_>>(), "{dtype:?}");
            Ok(())
        });
    }
}

/// Their scales lie behind the values in memory.
#[test]
fn quantized_tensors_are_not_gathered() {
    on_ranks(|comm| {
        let own = Tensor::<1>::from_data([-1.0, 0.5, 0.25, 1.0], &Device::default())
            .quantize_dynamic(&QuantScheme::default());
        let error = all_gather(comm, own.clone()).expect_err("it is quantized");
        assert!(matches!(error, Error::DType(DType::QFloat(_))), "{error}");
        let same = broadcast(comm, own.clone(), 1)?;
        assert_eq!(values(same.dequantize()), values(own.dequantize()));
        Ok(())
    });
}

#[test]
fn calls_that_do_not_match_are_errors() {
    on_ranks(|comm| {
        let short = Tensor::<1>::zeros([1 + comm.rank() as usize], &Device::default());
        let mismatch = all_reduce(comm, short, ReduceOp::Sum).expect_err("lengths differ");
        let of_kolo =
            matches!(&mismatch, Error::Kolo(kolo::Error::Mismatch { .. } | kolo::Error::Aborted { .. }));
        assert!(of_kolo && mismatch.to_string().contains("x f32"), "{mismatch}");
        Ok(())
    });
}

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    second: Linear,
    /// A layer that no sample uses, so that it has no gradient.
    idle: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { first: layer(8, 16), second: layer(16, 4), idle: layer(5, 3) }.map(&mut Fixed(0.0))
    }

    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(inputs)))
    }

    fn weights(&self) -> Vec<f32> {
        let layers = [&self.first, &self.second, &self.idle];
        layers
            .iter()
            .flat_map(|layer| {
                values(layer.weight.val())
                    .into_iter()
                    .chain(layer.bias.iter().flat_map(|bias| values(bias.val())))
            })
            .collect()
    }
}

/// Sets parameters to fixed values instead of random ones.
struct Fixed(f32);

impl ModuleMapper for Fixed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1.0;
        let shift = self.0;
        param.map(|tensor| {
            let (dims, device) = (tensor.dims(), tensor.device());
            let many = tensor.shape().num_elements();
            let fixed: Vec<f32> = (0..many).map(|i| 0.3 * (1.3 * i as f32 + shift).sin()).collect();
            Tensor::<1>::from_data(&fixed[..], &device)
                .reshape(dims)
                .set_require_grad(tensor.is_require_grad())
        })
    }
}

/// Returns the weights after some steps on this rank's samples.
fn train(
    (from, many): (usize, usize),
    start: impl Fn(Model) -> kolo_burn::Result<Model>,
    reduce: impl Fn(&Model, GradientsParams) -> kolo_burn::Result<GradientsParams>,
) -> kolo_burn::Result<Vec<f32>> {
    let device = Device::default().autodiff();
    let inputs: Vec<f32> = (from * 8..(from + many) * 8).map(|i| (i as f32).sin()).collect();
    let inputs = Tensor::<1>::from_data(&inputs[..], &device).reshape([many, 8]);
    let wanted: Vec<f32> = (from * 4..(from + many) * 4).map(|i| (0.7 * i as f32).cos()).collect();
    let wanted = Tensor::<1>::from_data(&wanted[..], &device).reshape([many, 4]);
    let mut model = start(Model::new(&device))?;
    // Decay would change the idle layer if it got a gradient of zeros.
    let mut optimizer = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))).init();
    for _ in 0..20 {
        let loss = (model.forward(inputs.clone()) - wanted.clone()).square().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let gradients = reduce(&model, gradients)?;
        model = optimizer.step(0.2, model, gradients);
    }
    Ok(model.weights())
}

#[test]
fn several_ranks_train_as_one_does() {
    let alone = train((0, SAMPLES), Ok, |_, gradients| Ok(gradients)).expect("a rank on its own");
    let each = SAMPLES / RANKS as usize;
    let together = on_ranks(|comm| {
        let start = |model: Model| {
            let model = if comm.rank() > 0 { model.map(&mut Fixed(comm.rank() as f32)) } else { model };
            broadcast_module(comm, model, 0)
        };
        train((comm.rank() as usize * each, each), start, |model, gradients| {
            all_reduce_gradients(comm, model, gradients, ReduceOp::Avg)
        })
    });
    assert!(together.iter().all(|weights| *weights == together[0]), "all ranks have the same bits");
    let furthest = alone.iter().zip(&together[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-5, "{furthest}");
    let untrained = Model::new(&Device::default()).weights();
    let moved: f32 = alone.iter().zip(&untrained).map(|(a, b)| (a - b).abs()).sum();
    assert!(moved > 0.1, "it has learned something: {moved}");
}
