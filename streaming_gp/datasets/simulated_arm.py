"""A simulated seven-joint robot arm: inverse dynamics through MuJoCo.

The arm is invented: joints and reach are those of a human-sized arm (shoulder, elbow and wrist, as
in the Barrett WAM), masses and inertias are round numbers. Needs the ``simulation`` extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import missing_extra

NUM_JOINTS = 7
EPISODE = 150
"""Samples of one movement."""
RATE = 20.0
"""Samples in a second."""
NOISE = np.array([0.15, 0.25, 0.08, 0.08, 0.015, 0.015, 0.005])
"""Standard deviation of the torque sensors, in N·m."""

_CENTRE = np.array([0.0, 0.7, 0.0, 1.3, 0.0, 0.5, 0.0])  # elbow and wrist bent, arm in front
_REACH = np.array([1.2, 0.7, 1.0, 0.9, 1.2, 0.9, 1.5])  # largest swing and offset, in radians
_HARMONICS = 3
_SLOWEST, _FASTEST = 0.1, 0.3  # fundamental frequencies, in Hz

_MJCF = """
<mujoco model="seven-joint arm">
  <compiler angle="radian" autolimits="false"/>
  <option gravity="0 0 -9.81"><flag contact="disable"/></option>
  <worldbody>
    <body name="shoulder yaw" pos="0 0 0.4">
      <joint name="1" axis="0 0 1" armature="0.05" damping="0.5"/>
      <inertial pos="0 -0.02 0.05" mass="4.0" diaginertia="0.030 0.030 0.020"/>
      <body name="shoulder pitch" pos="0 0 0.1">
        <joint name="2" axis="0 1 0" armature="0.05" damping="0.5"/>
        <inertial pos="0.01 0.02 0.05" mass="3.0" diaginertia="0.020 0.020 0.015"/>
        <body name="upper arm">
          <joint name="3" axis="0 0 1" armature="0.03" damping="0.3"/>
          <inertial pos="0.03 0 0.25" mass="4.0" diaginertia="0.090 0.090 0.012"/>
          <body name="elbow" pos="0.045 0 0.5">
            <joint name="4" axis="0 1 0" armature="0.03" damping="0.3"/>
            <inertial pos="-0.03 0.01 0.10" mass="1.5" diaginertia="0.012 0.012 0.004"/>
            <body name="forearm" pos="-0.045 0 0.15">
              <joint name="5" axis="0 0 1" armature="0.004" damping="0.05"/>
              <inertial pos="0 0.01 0.08" mass="1.0" diaginertia="0.005 0.005 0.002"/>
              <body name="wrist" pos="0 0 0.15">
                <joint name="6" axis="0 1 0" armature="0.004" damping="0.05"/>
                <inertial pos="0.01 0 0.04" mass="0.5" diaginertia="0.001 0.001 0.0008"/>
                <body name="hand and tool" pos="0 0 0.06">
                  <joint name="7" axis="0 0 1" armature="0.002" damping="0.02"/>
                  <inertial pos="0.04 0.02 0.06" mass="1.0" diaginertia="0.003 0.003 0.002"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def _library() -> Any:
    try:
        import mujoco
    except ImportError as error:
        raise missing_extra("the simulated arm", "MuJoCo", "simulation") from error
    return mujoco


def arm(payload: float = 0.0) -> Any:
    """The arm as a ``mujoco.MjModel``: seven hinges, no contacts, no limits.

    :param payload: A mass in kg that the hand carries.
    :raises InvalidDataError: if MuJoCo is not installed.
    """
    model = _library().MjModel.from_xml_string(_MJCF)
    model.body("hand and tool").mass += payload
    return model


def inverse_dynamics(states: np.ndarray, payload: float = 0.0) -> np.ndarray:
    """Joint torques [N, 7] in N·m that produce a movement.

    ``τ = M(q) q̈ + c(q, q̇) + g(q) + d q̇``, rotor inertias in M and viscous friction d, by
    ``mj_inverse`` (recursive Newton-Euler).

    :param states: The positions, velocities and accelerations [N, 21] in rad, rad/s, rad/s².
    :param payload: A mass in kg that the hand carries.
    :raises InvalidDataError: if there are not 21 columns.
    :raises InvalidDataError: if MuJoCo is not installed.
    """
    if states.ndim != 2 or states.shape[1] != 3 * NUM_JOINTS:
        raise InvalidDataError(f"states must have shape [N, 21], got {list(states.shape)}")
    mujoco, model = _library(), arm(payload)
    data = mujoco.MjData(model)
    torques = np.empty((len(states), NUM_JOINTS))
    for row, state in enumerate(states):
        data.qpos[:], data.qvel[:], data.qacc[:] = np.split(state, 3)
        mujoco.mj_inverse(model, data)
        torques[row] = data.qfrc_inverse
    return torques


def rhythmic_movement(rng: np.random.Generator) -> np.ndarray:
    """States [150, 21] along one smooth random rhythmic movement, sampled at 20 Hz.

    Every joint swings about its resting angle as a random Fourier series of three harmonics,
    ``q(t) = c + Σ_h a_h sin(h ω t + φ_h)``; velocities and accelerations are its derivatives.
    """
    harmonics = np.arange(1, _HARMONICS + 1)
    shape = (NUM_JOINTS, _HARMONICS)
    share = rng.dirichlet(np.ones(_HARMONICS), NUM_JOINTS) / harmonics
    amplitude = _REACH[:, None] * rng.uniform(0.4, 1.0, (NUM_JOINTS, 1)) * share
    omega = 2.0 * np.pi * rng.uniform(_SLOWEST, _FASTEST, (NUM_JOINTS, 1)) * harmonics
    phase = rng.uniform(0.0, 2.0 * np.pi, shape)
    centre = _CENTRE + 0.5 * _REACH * rng.uniform(-1.0, 1.0, NUM_JOINTS)
    angle = omega * np.arange(EPISODE)[:, None, None] / RATE + phase
    position = centre + np.sum(amplitude * np.sin(angle), axis=2)
    velocity = np.sum(amplitude * omega * np.cos(angle), axis=2)
    acceleration = -np.sum(amplitude * omega**2 * np.sin(angle), axis=2)
    return np.concatenate([position, velocity, acceleration], axis=1)


def simulate(num_movements: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Movements of the simulated arm, one after another, and its noisy torque sensors.

    :param num_movements: The number of movements, each of them 150 samples at 20 Hz.
    :param seed: The seed of movements and noise; the same seed gives the same arrays.
    :returns: states [N, 21] in rad, rad/s, rad/s² and torques [N, 7] in N·m, N = 150 × movements.
    :raises InvalidDataError: if MuJoCo is not installed.
    """
    rng = np.random.default_rng(seed)
    states = np.concatenate([rhythmic_movement(rng) for _ in range(num_movements)])
    torques = inverse_dynamics(states)
    return states, torques + NOISE * rng.standard_normal(torques.shape)
