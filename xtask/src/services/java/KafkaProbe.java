// One real client call: makes a topic, writes a record, reads it back. The broker's address is the
// argument. Prints 42 when it worked; anything else, or another exit code than 0, is a failure.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class KafkaProbe {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> client = Map.of(
            "bootstrap.servers", arguments[0],
            "request.timeout.ms", 5000,
            "default.api.timeout.ms", 20000,
            "max.block.ms", 20000,
            "delivery.timeout.ms", 20000);
        String topic = "onceward-probe-" + ProcessHandle.current().pid();
        try (Admin admin = Admin.create(client)) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.of((short) 1)))).all().get();
            try (var producer = new KafkaProducer<>(client, new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>(topic, "key", "42")).get();
            }
            try (var consumer = new KafkaConsumer<>(client, new StringDeserializer(), new StringDeserializer())) {
                TopicPartition partition = new TopicPartition(topic, 0);
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                long until = System.nanoTime() + Duration.ofSeconds(20).toNanos();
                while (System.nanoTime() < until) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                        System.out.println(record.value());
                        admin.deleteTopics(List.of(topic)).all().get();
                        return;
                    }
                }
            }
        }
        System.exit(1);
    }
}
