// Build a small index and query it from Go. Start a server at HOST:PORT, and run the program in the
// folder of the code that protoc generated:
//
//	go run build_and_query.go HOST:PORT
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	divgrpcv1 "divgrpc/v1"
	"google.golang.org/grpc"
)

// matrix returns rows of equal length as a Vectors message.
func matrix(rows [][]float32) *divgrpcv1.Vectors {
	dense := &divgrpcv1.DenseMatrix{Rows: uint32(len(rows)), Cols: uint32(len(rows[0]))}
	for _, row := range rows {
		dense.Values = append(dense.Values, row...)
	}
	return &divgrpcv1.Vectors{Kind: &divgrpcv1.Vectors_Dense{Dense: dense}}
}

// nearCopies returns the eight corners of a cube, each with two near-copies.
func nearCopies() [][]float32 {
	var rows [][]float32
	sides := []float64{-1, 1}
	for _, x := range sides {
		for _, y := range sides {
			for _, z := range sides {
				for copies := 0; copies < 3; copies++ {
					var row []float32
					for axis, side := range []float64{x, y, z} {
						row = append(row, float32(side+0.01*float64(copies)*float64(axis)))
					}
					rows = append(rows, row)
				}
			}
		}
	}
	return rows
}

func run(target string) error {
	connection, err := grpc.Dial(target, grpc.WithInsecure())
	if err != nil {
		return err
	}
	defer connection.Close()
	client := divgrpcv1.NewDiverseIndexClient(connection)

	building, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	built, err := client.BuildOnce(building, &divgrpcv1.BuildOnceRequest{
		Index: "cube-go", Replace: true, Vectors: matrix(nearCopies()),
	})
	if err != nil {
		return err
	}
	index := built.Index
	fmt.Printf("built %s: %d rows, %d dimensions\n", index.Name, index.Rows, index.Dims)

	asking, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	k, diversity := uint32(3), 0.3
	answer, err := client.Query(asking, &divgrpcv1.QueryRequest{
		Index: "cube-go", Queries: matrix([][]float32{{1, 0.9, 0.8}}), K: &k, Diversity: &diversity,
	})
	if err != nil {
		return err
	}
	// The request has one query row, so all ids and scores are its results, in rank order.
	// A score is the cosine of a point with the query.
	for rank, id := range answer.Ids {
		fmt.Printf("id %d score %.4f\n", id, answer.Scores[rank])
	}
	return nil
}

func main() {
	target := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if err := run(target); err != nil {
		log.Fatal(err)
	}
}
