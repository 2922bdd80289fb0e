"""What a trained model says about nodes or graphs, in Parquet files under the user's own keys; see docs/predict.md."""
