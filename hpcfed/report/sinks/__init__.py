"""External logs of a run's numbers, round by round: TensorBoard, Weights & Biases, MLflow.

A sink is a class here and a field of the job's part `log` (`--log.tensorboard`). Only rank 0 has
sinks; their packages are imported only when asked for, and no result depends on them.
"""

from hpcfed.core.registry import Entry

SINKS = {
    "tensorboard": Entry(
        "hpcfed.report.sinks.tensorboard:TensorBoard", "event files in the run's folder"
    ),
    "wandb": Entry(
        "hpcfed.report.sinks.wandb:WandB",
        "Weights & Biases: in the run's folder, or as WANDB_MODE says",
    ),
    "mlflow": Entry(
        "hpcfed.report.sinks.mlflow:MLflow",
        "MLflow: in the run's folder, or at MLFLOW_TRACKING_URI",
    ),
}
