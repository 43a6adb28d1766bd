"""The simulated arm obeys the laws of mechanics."""

import sys

import numpy as np
import pytest

from streaming_gp import datasets
from streaming_gp.datasets import simulated_arm
from streaming_gp.errors import InvalidDataError


@pytest.fixture(scope="module")
def movement():
    return simulated_arm.rhythmic_movement(np.random.default_rng(3))


def energy(states):
    """Kinetic and potential energy [N] of the simulated arm, and the power that friction takes."""
    import mujoco

    model = simulated_arm.arm()
    data = mujoco.MjData(model)
    energies = []
    for state in states:
        data.qpos[:], data.qvel[:] = state[:7], state[7:14]
        mujoco.mj_forward(model, data)
        mujoco.mj_energyVel(model, data)
        kinetic, potential = data.energy[1], 9.81 * model.body_mass @ data.xipos[:, 2]
        energies.append(kinetic + potential)
    return np.array(energies), states[:, 7:14] ** 2 @ model.dof_damping


def test_a_resting_simulated_arm_holds_its_weight(movement):
    """At rest the torque is the gradient of the potential energy, here by differences."""
    resting = np.c_[movement[:5, :7], np.zeros((5, 14))]
    torques, step = simulated_arm.inverse_dynamics(resting), 1e-5
    for joint in range(7):
        nudge = step * np.eye(21)[joint]
        slope = (energy(resting + nudge)[0] - energy(resting - nudge)[0]) / (2.0 * step)
        np.testing.assert_allclose(torques[:, joint], slope, atol=1e-7)
    assert np.abs(torques[:, 0]).max() < 1e-12  # gravity does not turn the vertical axis
    assert np.abs(torques[:, 1]).min() > 1.0


def test_the_work_on_the_simulated_arm_becomes_energy_and_heat(movement):
    """Power in = rate of change of the energy + friction, along a movement in small steps."""
    position, velocity, acceleration = np.split(movement, 3, axis=1)
    step = 1e-4

    def at(time):
        """The movement's states, a moment later or earlier."""
        return np.c_[
            position + time * velocity + 0.5 * time**2 * acceleration,
            velocity + time * acceleration,
            acceleration,
        ]

    power = np.sum(simulated_arm.inverse_dynamics(movement) * velocity, axis=1)
    gained = (energy(at(step))[0] - energy(at(-step))[0]) / (2.0 * step)
    np.testing.assert_allclose(power, gained + energy(movement)[1], atol=1e-5)


def test_twice_as_fast_takes_four_times_the_torque_beside_weight_and_friction(movement):
    damping = simulated_arm.arm().dof_damping
    weight = simulated_arm.inverse_dynamics(movement * np.repeat([1.0, 0.0, 0.0], 7))

    def inertial(states):
        return simulated_arm.inverse_dynamics(states) - weight - damping * states[:, 7:14]

    faster = movement * np.repeat([1.0, 2.0, 4.0], 7)
    np.testing.assert_allclose(inertial(faster), 4.0 * inertial(movement), atol=1e-10)


def test_velocities_and_accelerations_of_a_movement_are_its_derivatives(movement):
    position, velocity, acceleration = np.split(movement, 3, axis=1)
    for value, rate in ((position, velocity), (velocity, acceleration)):
        slope = (value[2:] - value[:-2]) * simulated_arm.RATE / 2.0
        assert np.abs(slope - rate[1:-1]).max() < 0.05 * np.abs(rate).max()


def test_without_the_library_the_simulation_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(
        simulated_arm.SimulationMissingError, match=r"pip install streaming-gp\[simulation\]"
    ):
        datasets.load_robot_arm("simulated")
    with pytest.raises(InvalidDataError, match=r"shape \[N, 21\], got \[2, 7\]"):
        simulated_arm.inverse_dynamics(np.zeros((2, 7)))
