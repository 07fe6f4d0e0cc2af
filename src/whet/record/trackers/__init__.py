"""Services that follow a run: trackio, TensorBoard, Weights & Biases, MLflow. One file each, imported when used."""
