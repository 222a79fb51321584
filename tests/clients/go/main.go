// A client of the agent in Go, without any option about names. It prints OK, or why not.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// raw passes messages as bytes, so that no generated code is needed.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "proto" }

func ask(socket string) error {
	channel, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// More than once: later requests name what the first one said.
	for range 3 {
		var request, reply []byte
		if err := channel.Invoke(ctx, "/apportion.v1.Agent/NodeState", &request, &reply, grpc.ForceCodec(raw{})); err != nil {
			return err
		}
		if len(reply) == 0 {
			return fmt.Errorf("an empty answer")
		}
	}
	return nil
}

func main() {
	if err := ask(os.Args[1]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("OK")
}
