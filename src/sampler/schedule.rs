//! The noise levels of each step, shifted by the size of the image.

/// The noise levels, and the timesteps that the model reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Noise levels, steps + 1 of them, from 1 falling to 0.
    pub sigmas: Vec<f32>,
    /// What the transformer reads at each step, in 0..1000, in float32 on every backend.
    ///
    /// Nothing is rounded here. In bf16 the reference rounds its timestep too, to a multiple of 4 above 512. On random
    /// weights, that alone moves its final latents by 0.065 (512 x 512) and 0.035 (1024 x 1024) from its own in
    /// float32; with exact timesteps the rest of bf16 moves them by 0.0064 and 0.0067.
    pub timesteps: Vec<f32>,
}

impl Schedule {
    /// The schedule for `tokens` image tokens in `steps` steps.
    ///
    /// Source: FLUX.2 reference pipeline (`compute_empirical_mu`) and diffusers `FlowMatchEulerDiscreteScheduler`
    /// with dynamic exponential shifting.
    pub fn new(tokens: usize, steps: usize) -> Self {
        let shift = mu(tokens, steps).exp() as f32;
        let sigma = |i: usize| {
            let linear = linspace_down(i, steps) as f32;
            shift / (shift + (1.0 / linear - 1.0))
        };
        let sigmas: Vec<f32> = (0..steps).map(sigma).chain([0.0]).collect();
        let timesteps = sigmas[..steps].iter().map(|sigma| sigma * 1000.0).collect();
        Self { sigmas, timesteps }
    }

    /// Steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// The length of each step; negative.
    pub fn dts(&self) -> Vec<f32> {
        self.sigmas.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Point i of `numpy.linspace(1, 1 / n, n)`: start + i * step, the last one exactly 1 / n.
fn linspace_down(i: usize, n: usize) -> f64 {
    let end = 1.0 / n as f64;
    if n > 1 && i == n - 1 {
        return end;
    }
    1.0 + i as f64 * ((end - 1.0) / (n.max(2) - 1) as f64)
}

/// The empirical shift of this model, by tokens and steps. It jumps at 4300 tokens.
fn mu(tokens: usize, steps: usize) -> f64 {
    let n = tokens as f64;
    let at_200 = 0.00016927 * n + 0.45666666;
    if tokens > 4300 {
        return at_200;
    }
    let at_10 = 8.73809524e-05 * n + 1.89833333;
    let slope = (at_200 - at_10) / 190.0;
    slope * steps as f64 + (at_200 - 200.0 * slope)
}
