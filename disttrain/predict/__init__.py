"""What a trained model says about nodes, written to Parquet files under the user's own keys; see docs/predict.md."""
